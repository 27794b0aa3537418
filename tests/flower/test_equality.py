"""A deployment gives the weights of the simulation: real processes, TLS and node authentication on.

`make test-flower` tries two methods, `make flower-equality` (FEDACD_ALL=1) all of the registry.
"""

import os
from pathlib import Path

import pytest
import torch

import fedacd
from fedacd.files import read_safetensors
from fedacd.methods import METHODS
from fedacd.records import MODEL, read_rounds
from tests.flower.federation import TINY, Federation

TRIED = list(METHODS) if os.environ.get("FEDACD_ALL") else ["fedacd", "creff"]


def difference(one: Path, other: Path) -> float:
    """The largest relative difference of a tensor of two models."""
    a, b = (read_safetensors(path / MODEL, "model")[0] for path in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).norm() / b[name].norm().clamp(min=1e-12)) for name in a)


@pytest.fixture(scope="module")
def deployed(federation: Federation) -> dict[str, Path]:
    """The run of every method, three at a time: most of a small round is waiting."""
    folders: dict[str, Path] = {}
    for some in (TRIED[at : at + 3] for at in range(0, len(TRIED), 3)):
        settings = {"flower.round_seconds": 180, "flower.join_seconds": 180}
        folders |= {method: federation.submit(method, {"method.name": method, **settings}) for method in some}
        for method in some:
            federation.wait(folders[method], 400)
    return folders


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", TRIED)
def test_four_sites_over_three_rounds_give_the_weights_of_the_simulation(
    deployed: dict[str, Path], federation: Federation, tmp_path: Path, method: str
) -> None:
    settings = {**TINY, "data.name": str(federation.data), "method.name": method}
    torch.set_num_threads(1)
    simulated = fedacd.run(settings, device="cpu", workers=1, out=tmp_path / "simulated")
    far = difference(deployed[method], simulated.folder)
    print(f"{method}: largest relative difference {far:.1e}")
    assert far < 1e-5
    for ours, theirs in zip(read_rounds(deployed[method]), simulated.history, strict=True):
        assert ours["participants"] == theirs["participants"] == [0, 1, 2, 3]
        assert ours["refused"] == ours["absent"] == []
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
        assert (ours["bytes_up"], ours["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])
        assert [ours[key] for key in ("accuracy_client", "risk", "kl_local", "kl_test", "train_loss")] == [None] * 5
