"""Tensors on the disk."""

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedacd.errors import RecordError
from fedacd.files import read_safetensors, write_atomically, write_safetensors


def test_views_parts_and_repetitions_are_written_as_they_look(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "whole": whole,
        "again": whole,
        "turned": whole.mT,
        "part": whole[1:3],
        "one": whole[2, 3],
        "spread": whole[:1].expand(3, 6),
        "empty": whole[:0],
        "empty too": torch.zeros(0),
        "half": whole.to(torch.bfloat16),
        "yes": whole > 7,
        "number": torch.tensor(3),
    }
    write_safetensors(tmp_path / "file", tensors, {"holds": "model"})
    found, _ = read_safetensors(tmp_path / "file", "model")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


MEMORY = """
import resource, sys, torch
from pathlib import Path
from fedacd.files import write_safetensors
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
write_safetensors(Path(sys.argv[1]), {"warm": torch.ones(1000)}, {})
tensors = {str(i): torch.full((250_000,), float(i)) for i in range(200)}
before = peak()
write_safetensors(Path(sys.argv[1]), tensors, {})
print(peak() - before)
"""


def test_writing_takes_no_memory_for_copies(tmp_path: Path) -> None:
    """200 MB of tensors, as of many clients."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "file")]
    more = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (tmp_path / "file").stat().st_size > 200e6
    assert more < 20


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        (tmp_path / "file.partial").touch()
        raise safetensors.SafetensorError("No space left on device (os error 28)")

    write_safetensors(tmp_path / "file", {"w": torch.ones(2)}, {"holds": "model"})
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(RecordError, match=r"No space left on device\. What was saved before is intact"):
        write_safetensors(tmp_path / "file", {"w": torch.zeros(2)}, {"holds": "model"})
    assert torch.equal(read_safetensors(tmp_path / "file", "model")[0]["w"], torch.ones(2))
    assert not (tmp_path / "file.partial").exists()


def test_a_device_takes_what_it_is_given_and_stays() -> None:
    write_atomically(Path("/dev/null"), b"text")
    assert Path("/dev/null").is_char_device()
    assert not Path("/dev/null.partial").exists()
