"""Mistakes in a method of one's own that would show late, or never: they end the run in its first round."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedacd
from fedacd.data import Dataset
from fedacd.errors import FedacdError
from fedacd.methods import Client, Did, FedAvg, Shared, Tensors, Trained

SMALL: dict[str, Any] = {"clients": 4, "participation": 0.5, "epochs": 1, "batch_size": 32, "rounds": 2}


@dataclass(frozen=True, kw_only=True)
class Keeps(FedAvg):
    """Keeps its weights from its first round on, and says nothing of them before."""

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        client, extra, told = super().finish(now, shared, client, did)
        return client._replace(memo=dict(now.params)), extra, told


@dataclass(frozen=True, kw_only=True)
class Writes(FedAvg):
    """Shrinks the server's weights where it should make new ones."""

    def begin(self, shared: Shared, client: Client) -> Client:
        shared.params["head.weight"].mul_(0.97)
        return super().begin(shared, client)


CASES = {
    "keeps": (
        Keeps(),
        "Keeps: a client's state has changed its names, types or shapes. What it keeps is given",
    ),
    "writes": (Writes(), "Writes: shared.params['head.weight'] was written to in place"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_told_in_the_first_round(digits: Dataset, tmp_path: Path, case: str, workers: int) -> None:
    method, words = CASES[case]
    with pytest.raises(FedacdError, match=re.escape(words)) as raised:
        fedacd.run(dataset=digits, method=method, workers=workers, out=str(tmp_path / "run"), **SMALL)
    assert raised.value.exit_code == 1
