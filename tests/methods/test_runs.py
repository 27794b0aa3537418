"""Whole runs of every method on real digits: neutral values, resuming, what is shared and what is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedacd
from fedacd.checkpoint import State
from fedacd.data import Dataset
from fedacd.engine.local import run_client
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import prepare
from fedacd.methods import METHODS
from fedacd.records import read_rounds

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
    ours, usual = mine.open(), base.open()
    assert ours.keys() == usual.keys()
    for number, job in ours.items():
        other = usual[number]
        assert job.seed == other.seed
        assert torch.equal(job.members, other.members)
        for drawn in ("order", "size", "shift", "flip"):
            assert np.array_equal(getattr(job.plan, drawn), getattr(other.plan, drawn))


def test_every_clients_round_has_a_seed_of_its_own(digits: Dataset) -> None:
    made = simulation(digits, "fedavg")
    seeds = []
    for _ in range(2):
        jobs = made.open()
        seeds += [job.seed for job in jobs.values()]
        for number, job in jobs.items():
            made.feed(number, run_client(job))
        made.close()
    assert len(set(seeds)) == len(seeds) == 4


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


def test_a_private_head_is_clipped_and_decayed_by_itself(digits: Dataset) -> None:
    """FedROD's client for three steps, beside one torch optimiser for what is shared and one for the personal head."""
    settings = {"train__clip": 0.05, "train__weight_decay": 0.05, "train__batch_size": 4096, "train__epochs": 3}
    made = simulation(digits, "fedrod", data__flip=False, data__crop=0, **settings)
    job = next(iter(made.open().values()))
    outcome = run_client(job)
    head = torch.zeros_like(outcome.client.private["head"]).requires_grad_()
    params = {name: w.clone().requires_grad_() for name, w in job.shared.params.items()}
    groups = [list(params.values()), [head]]
    optimisers = [torch.optim.SGD(group, lr=job.lr, momentum=0.9, weight_decay=0.05) for group in groups]
    norms = []
    for order, size in zip(job.plan.order, job.plan.size, strict=True):
        index = job.members[torch.from_numpy(order[:size])]
        features, logits = job.net(params, job.images.clean(index))
        assert features is not None
        y = job.images.labels[index]
        balanced = F.cross_entropy(logits + job.client.counts.log(), y)
        personal = F.cross_entropy(logits.detach() + features.detach() @ head.mT, y)
        for optimiser in optimisers:
            optimiser.zero_grad()
        torch.autograd.backward(balanced + personal)
        norms.append([float(torch.nn.utils.clip_grad_norm_(group, 0.05)) for group in groups])
        for optimiser in optimisers:
            optimiser.step()
    assert min(map(min, norms)) > 0.05  # both are clipped
    torch.testing.assert_close(outcome.client.private["head"], head.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outcome.reply.params, {k: w.detach() for k, w in params.items()}, rtol=1e-4, atol=1e-6)
