"""Whole runs of every method on real digits: neutral values, resuming, what is shared and what is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedacd
from fedacd.data import Dataset
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import prepare
from fedacd.methods import METHODS
from fedacd.records import State, read_rounds

ALL = pytest.mark.parametrize("name", METHODS)
SMALL: dict[str, Any] = {
    "partition.clients": 4,
    "partition.scheme": "iid",  # every client holds every class
    "train.participation": 0.5,
    "train.epochs": 1,
    "train.batch_size": 32,
    "train.rounds": 3,
    "train.lr": 0.05,
    "train.clip": 0.5,
}


FEW_STEPS = {"method.match_steps": 3, "method.head_steps": 5}
"""CReFF's server, kept short."""


def simulation(digits: Dataset, name: str, **options: Any) -> Simulation:
    values = SMALL | {"method.name": name} | (FEW_STEPS if name == "creff" else {})
    values |= {key.replace("__", "."): value for key, value in options.items()}
    return Simulation(prepare(values, dataset=digits))


def advanced(digits: Dataset, name: str, rounds: int = 2, **options: Any) -> Simulation:
    made = simulation(digits, name, **options)
    for _ in range(rounds):
        made.advance()
    return made


@pytest.fixture(scope="module")
def fedavg(digits: Dataset) -> Simulation:
    return advanced(digits, "fedavg")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("fedprox", {"method__mu": 0.0}),
        ("fedntd", {"method__beta": 0.0}),
        ("feddecorr", {"method__coef": 0.0}),
        ("fedlc", {"method__tau": 0.0}),
        ("fedrod", {"method__gamma": 0.0}),
        ("creff", {}),  # its body is FedAvg's, whatever its head
    ],
)
def test_neutral_values_give_the_bits_of_fedavg(
    name: str, option: dict[str, Any], digits: Dataset, fedavg: Simulation
) -> None:
    neutral = advanced(digits, name, **option)
    torch.testing.assert_close(neutral.state.server.shared.params, fedavg.state.server.shared.params, rtol=0, atol=0)


def test_fednova_with_equal_sizes_is_fedavg(digits: Dataset) -> None:
    equal = digits.y_train[:1436]  # four clients of 359
    data = Dataset.from_arrays(digits.x_train[:1436], equal, digits.x_test, digits.y_test)
    one, other = (advanced(data, name) for name in ("fednova", "fedavg"))
    torch.testing.assert_close(one.state.server.shared.params, other.state.server.shared.params, rtol=1e-6, atol=1e-6)


def test_creffs_local_risk_is_fedavgs(digits: Dataset) -> None:
    one, other = simulation(digits, "creff"), simulation(digits, "fedavg")
    for _ in range(2):
        a, b = one.advance(), other.advance()
        assert (a["risk"], a["kl_local"], a["kl_test"]) == (b["risk"], b["kl_local"], b["kl_test"])
    assert a["per_class"] != b["per_class"]  # the re-trained head is another one


@ALL
def test_a_killed_run_resumes_to_the_same_bits(
    name: str, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State lives in Server and Client alone: what was not written down is not needed."""
    values = SMALL | {"method.name": name} | (FEW_STEPS if name == "creff" else {})

    class KilledError(BaseException):
        pass

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KilledError

    whole = fedacd.run(values, dataset=digits, out=tmp_path / "whole").folder
    with pytest.raises(KilledError):
        fedacd.run(values, dataset=digits, out=tmp_path / "killed", on_round=kill)
    killed = fedacd.run(values, dataset=digits, out=tmp_path / "killed").folder
    for file in ("state.safetensors", "model.safetensors"):
        assert (whole / file).read_bytes() == (killed / file).read_bytes()
    lines = [[{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(f)] for f in (whole, killed)]
    assert lines[0] == lines[1]


@ALL
def test_every_method_starts_from_the_same_weights_clients_and_batches(name: str, digits: Dataset) -> None:
    mine, base = simulation(digits, name), simulation(digits, "fedavg")
    theirs = base.state.server.shared.params
    for key, value in mine.state.server.shared.params.items():
        assert key == "scale" or torch.equal(value, theirs[key])  # FedNH's scale is its own
    a, b = mine.advance(), base.advance()
    assert a["participants"] == b["participants"]
    assert mine.method.needs_features or len(a["per_class"]) == 10


@ALL
def test_every_method_has_every_metric_and_learns(name: str, digits: Dataset) -> None:
    """Eight rounds on equal clients: far above the 10 % of a guess; FedNH at scale 1 learns slowly by design."""
    enough = {"method__match_steps": 20, "method__head_steps": 100} if name == "creff" else {}
    made = simulation(digits, name, train__rounds=8, train__epochs=3, run__eval_every=8, **enough)
    for _ in range(8):
        record = made.advance()
    for key in ("accuracy", "accuracy_client", "risk", "kl_local", "kl_test", "train_loss", "bytes_up", "bytes_down"):
        assert record[key] is not None
    assert record["accuracy"] > 0.5


KEPT = {"fedrod": "private", "scaffold": "memo", "feddyn": "memo"}


@ALL
def test_what_a_client_keeps(name: str, digits: Dataset) -> None:
    state: State = advanced(digits, name, 1).state
    kept = {part for client in state.clients for part in ("private", "memo") if getattr(client, part)}
    assert kept == ({KEPT[name]} if name in KEPT else set())
