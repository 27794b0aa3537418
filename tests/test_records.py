"""Run folders: crashes at every write, kills at random moments, and folders that are not what they should be."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedacd
import fedacd.api
from fedacd import records
from fedacd.api import Result
from fedacd.checkpoint import State
from fedacd.config import Config
from fedacd.data import Dataset
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import prepare
from fedacd.errors import RecordError
from fedacd.metrics import METRICS
from fedacd.records import RunFolder, read_rounds, summary

TINY: dict[str, Any] = {
    "partition.clients": 3,
    "train.participation": 0.7,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.rounds": 3,
    "run.save_every": 1,
    "train.clip": 0.05,  # so that clipping binds: its norm is the one sum over all weights
}


def train(digits: Dataset, out: Path, **settings: Any) -> Result:
    return fedacd.run(TINY | settings, dataset=digits, out=str(out))


def numbers(folder: Path) -> tuple[Any, ...]:
    """All that a run decides: the bytes of its weights, and its record but for the clock."""
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(folder)]
    return (folder / "state.safetensors").read_bytes(), (folder / "model.safetensors").read_bytes(), lines


@pytest.fixture(scope="module")
def reference(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(digits, tmp_path_factory.mktemp("reference") / "run").folder


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """Let the process 'die' at its count-th fsync, before or after the write took effect as it comes."""
    fsync, calls = os.fsync, 0

    def counted(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            raise Killed
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    return lambda: calls


def crashes_survived(
    digits: Dataset, expected: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, begun: Path | None = None
) -> int:
    """Train with a crash at every write in turn, then again without; the number of crashes."""
    for count in range(1, 100):
        out = folder / str(count)
        if begun:
            copy(begun, out)
        with monkeypatch.context() as patch:
            crash_at(patch, count)
            try:
                train(digits, out)
            except Killed:
                pass
            else:
                return count - 1
        train(digits, out)
        assert numbers(out) == numbers(expected), f"crash at write {count}"
    raise AssertionError("there is no end of writes")


def test_a_crash_at_any_write_loses_nothing(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = crashes_survived(digits, reference, tmp_path, monkeypatch)
    assert crashes > 15  # partition, config, rounds, states, model, env: each file and its folder


COMMAND = [sys.executable, "-m", "fedacd", "run", "--dataset", "digits", "--rounds", "12", "--clients", "5"]


def test_kill_9_at_random_moments_and_the_same_command_again(tmp_path: Path) -> None:
    settings = ["--set", "train.epochs=2", "--set", "partition.scheme=iid", "--set", "train.clip=0.1", "--out"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*COMMAND, *settings, str(whole)], check=True, capture_output=True)
    draw, midway = random.Random(0), 0
    for lines in (0, 2, 5, 9):
        process = subprocess.Popen(
            [*COMMAND, *settings, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and len(read_rounds(killed)) <= lines:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.wait()
        midway += 0 < len(read_rounds(killed)) < 12
    finished = subprocess.run([*COMMAND, *settings, str(killed)], check=True, capture_output=True, text=True)
    assert "accuracy" in finished.stdout
    assert midway >= 2
    assert numbers(killed) == numbers(whole)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*COMMAND, "--out", str(out), "--set", "run.save_every=1000", "--set", "partition.scheme=iid"]
    command[command.index("12")] = "500"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    while "round 2/500" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "The same command goes on from there: fedacd run --dataset digits" in error
    # Interrupted between the two, a line is ahead of its checkpoint: it is dropped on resume.
    assert 0 <= len(read_rounds(out)) - (records.finished_rounds(out) or 0) <= 1 < len(read_rounds(out))
    assert json.loads((out / "env.json").read_text())["sessions"][0]["ended"]


def test_a_second_process_is_refused(digits: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunFolder(out):
        again = subprocess.run([*COMMAND, "--out", str(out)], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr == f"error: {out} is in use by another process: wait for it, or choose another run.out.\n"


def test_a_finished_run_is_not_trained_again(digits: Dataset, reference: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in reference.iterdir()}
    result = train(digits, reference)
    assert len(result.history) == 3
    for name in ("state.safetensors", "model.safetensors", "config.toml", "env.json", "partition.npz"):
        assert (reference / name).stat().st_mtime_ns == before[name]


def test_saving_every_k_rounds_resumes_from_the_last_save(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, append = tmp_path / "run", RunFolder.append

    def dying(self: RunFolder, record: dict[str, Any]) -> None:
        append(self, record)
        if record["round"] == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", dying)
        with pytest.raises(Killed):
            train(digits, out, **{"run.save_every": 2})
    assert records.finished_rounds(out) == 2
    assert len(read_rounds(out)) == 3
    train(digits, out, **{"run.save_every": 2})
    assert numbers(out) == numbers(reference)


def test_another_config_is_refused_and_named(digits: Dataset, reference: Path) -> None:
    before = numbers(reference)
    with pytest.raises(RecordError, match=r"holds another run: train\.lr is 0\.01 there and 0\.5 here"):
        train(digits, reference, **{"train.lr": 0.5})
    with pytest.raises(RecordError, match=r"method\.name is 'fedacd' there and 'fedavg' here"):
        train(digits, reference, **{"method.name": "fedavg"})
    other = Dataset.from_arrays(digits.x_train[::-1], digits.y_train[::-1], digits.x_test, digits.y_test, name="digits")
    with pytest.raises(RecordError, match=r"data\.fingerprint is"):
        train(other, reference)
    assert numbers(reference) == before


def test_other_samples_are_refused(digits: Dataset, tmp_path: Path) -> None:
    thirds = [np.arange(len(digits.y_train))[i::3] for i in range(3)]
    fedacd.run(TINY, dataset=digits, partition=thirds, out=str(tmp_path / "run"))
    with pytest.raises(RecordError, match="its clients have other samples"):
        fedacd.run(TINY, dataset=digits, partition=thirds[::-1], out=str(tmp_path / "run"))


@pytest.mark.parametrize("keep", [0, 10, 5000])
def test_a_truncated_checkpoint_is_refused(digits: Dataset, reference: Path, tmp_path: Path, keep: int) -> None:
    out = copy(reference, tmp_path / "run")
    state = out / "state.safetensors"
    state.write_bytes(state.read_bytes()[:keep])
    with pytest.raises(RecordError, match=r"state\.safetensors is damaged or cut short"):
        train(digits, out)
    assert state.stat().st_size == keep


def test_a_flipped_bit_in_a_checkpoint_is_noticed(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    content = bytearray((out / "state.safetensors").read_bytes())
    content[-5] ^= 1
    (out / "state.safetensors").write_bytes(content)
    with pytest.raises(RecordError, match="its checksum does not fit"):
        train(digits, out)


def copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_a_checkpoint_of_another_config_is_refused(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    (out / "state.safetensors").write_bytes((reference / "model.safetensors").read_bytes())
    with pytest.raises(RecordError, match="not a checkpoint"):
        train(digits, out)
    other = train(digits, tmp_path / "other", **{"train.lr": 0.2}).folder
    (out / "state.safetensors").write_bytes((other / "state.safetensors").read_bytes())
    with pytest.raises(RecordError, match="is the checkpoint of another config"):
        train(digits, out)


def test_a_checkpoint_that_does_not_fit_is_refused(digits: Dataset) -> None:
    simulation = Simulation(prepare(TINY, dataset=digits))
    state, shared = simulation.state, simulation.state.server.shared
    short = {name: w for name, w in shared.params.items() if "bias" not in name}
    flat = {name: w.flatten() for name, w in shared.params.items()}
    for bad, reason in (
        (state._replace(clients=state.clients[:2]), "it has 2 clients"),
        (state._replace(server=state.server._replace(shared=shared._replace(params=short))), "it has"),
        (state._replace(server=state.server._replace(shared=shared._replace(params=flat))), "is torch.float32"),
    ):
        with pytest.raises(RecordError, match=f"the checkpoint does not fit this run: .*{reason}"):
            simulation.restore(bad)


def test_a_damaged_partition_is_refused(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"PK junk", (reference / "partition.npz").read_bytes()[:200])):
        out = copy(reference, tmp_path / str(number))
        (out / "partition.npz").write_bytes(content)
        with pytest.raises(RecordError, match=r"cannot read .*partition\.npz"):
            train(digits, out)


def test_an_error_of_the_callers_saves_what_is_finished(digits: Dataset, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fedacd.run(TINY | {"run.save_every": 100}, dataset=digits, out=str(tmp_path / "run"), on_round=stop)
    assert records.finished_rounds(tmp_path / "run") == 2


def test_an_unfinished_run_says_so(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    (out / "model.safetensors").unlink()
    with pytest.raises(RecordError, match="is not finished: 3 of 3 rounds"):
        Result.load(out)


def test_a_damaged_model_of_a_finished_run_is_written_again(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    (out / "model.safetensors").write_bytes(b"junk")
    (out / "env.json").write_text("junk")  # it only informs: no reason to refuse
    train(digits, out)
    assert numbers(out) == numbers(reference)


def test_a_run_needs_no_git(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = train(digits, tmp_path / "run").folder
    assert json.loads((folder / "env.json").read_text())["sessions"][0]["commit"] is None


def test_a_folder_with_something_else_in_it_is_refused(digits: Dataset, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RecordError, match=r"not empty and holds no fedacd run \(it has thesis\.tex\)"):
        train(digits, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_named(digits: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot write .*file/run: Not a directory"):
        train(digits, tmp_path / "file" / "run")


def test_a_full_disk_ends_with_a_message_and_what_was_saved_is_intact(
    digits: Dataset, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, save, saves = tmp_path / "run", RunFolder.save_state, []

    def full(self: RunFolder, state: State, config: Config) -> None:
        """From the second checkpoint on, the disk takes no byte more; every later write then fails in the system."""
        saves.append(state.round)
        if len(saves) == 2:
            patch.setattr(os, "fsync", no_space)
        save(self, state, config)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_state", full)
        with pytest.raises(RecordError, match=r"cannot write .*rounds\.jsonl: No space left on device"):
            train(digits, out, **{"run.save_every": 1})
    assert records.finished_rounds(out) == 1
    assert not list(out.glob("*.partial"))
    train(digits, out)
    assert numbers(out) == numbers(reference)


def test_a_damaged_record_is_refused(digits: Dataset, reference: Path, tmp_path: Path) -> None:
    out = copy(reference, tmp_path / "run")
    (out / "rounds.jsonl").write_text("")
    with pytest.raises(RecordError, match=r"rounds\.jsonl is damaged: it has 0 whole lines"):
        train(digits, out)


def test_what_a_run_leaves_behind(digits: Dataset, reference: Path) -> None:
    names = {path.name for path in reference.iterdir()}
    assert names == {
        ".lock", "config.toml", "env.json", "partition.npz", "rounds.jsonl",
        "matrices.safetensors", "model.safetensors", "state.safetensors",
    }  # fmt: skip
    (session,) = json.loads((reference / "env.json").read_text())["sessions"]
    assert session["from_round"] == 0
    assert session["ended"] >= session["started"]
    assert session["torch"]
    held = records.read_partition(reference)
    assert sorted(np.concatenate(held).tolist()) == list(range(len(digits.y_train)))
    config = records.read_config(reference)
    open_ones = [key for key, value in config.flat().items() if value is None]
    # Nothing that decided the run is left open.
    assert open_ones == ["partition.file", "run.slots", "run.workers", "run.threads"]


def test_summary_is_the_mean_over_the_last_ten_rounds() -> None:
    def line(number: int, accuracy: float | None) -> dict[str, Any]:
        return {"round": number, **dict.fromkeys(METRICS, accuracy)}

    rounds = [line(number, number / 100) for number in range(1, 21)]
    found = summary(rounds)
    assert found["accuracy"] == pytest.approx(0.155)  # rounds 11 to 20
    assert (found["accuracy_last"], found["accuracy_best"]) == (0.2, 0.2)
    seldom = [line(number, number / 100 if number % 4 == 0 else None) for number in range(1, 21)]
    assert summary(seldom)["accuracy"] == pytest.approx(0.16)  # rounds 12, 16 and 20
    assert summary([line(1, None)]) == {}
    stopped = [line(number, 0.5 if number == 1 else None) for number in range(1, 30)]
    assert summary(stopped)["accuracy"] == 0.5  # nothing measured lately: the last that was
