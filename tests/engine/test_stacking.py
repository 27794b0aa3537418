"""What a method and a model let us stack."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedacd.data import Dataset
from fedacd.engine.crew import Crew, Loop
from fedacd.engine.setup import prepare
from fedacd.engine.slots import variable
from fedacd.engine.together import _tiny_job, trainer_for
from fedacd.methods import METHODS, Client, Did, Tensors
from fedacd.methods.fedavg import FedAvg
from fedacd.models import SmallCNN
from tests.engine.test_slots import SMALL, a_run, assert_same_bits, by_loop, some, without_clock, work


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


def test_finding_what_may_differ_leaves_the_network_alone(data: Dataset) -> None:
    for name in METHODS:
        setup = a_run(data, name)
        before = pytree.tree_map(torch.clone, dict(setup.net.initial))
        variable(_tiny_job(setup))
        torch.testing.assert_close(dict(setup.net.initial), before, rtol=0, atol=0)


def test_what_may_differ_between_slots(data: Dataset) -> None:
    found = variable(_tiny_job(a_run(data, "fedacd")))
    assert set(found) == {"lam", "tau", "missing"}
    assert variable(_tiny_job(a_run(data, "fedavg"))) == []


class Dropping(SmallCNN):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


def test_a_model_with_dropout_is_trained_by_the_loop(data: Dataset) -> None:
    setup = prepare(SMALL, dataset=data, model=Dropping)
    said: list[str] = []
    trainer = trainer_for([setup], said.append)
    assert isinstance(trainer, Loop)
    (message,) = said
    assert message.startswith("training one client at a time: this run cannot be stacked (")
    ((simulation, records),) = work(Crew(trainer), [setup])
    alone, expected = by_loop(setup)
    assert_same_bits(simulation, alone)
    assert without_clock(records) == without_clock(expected)


@dataclass(frozen=True, kw_only=True)
class Noting(FedAvg):
    """Notes something down that it had not before."""

    def observe(self, out: Tensors, target: Tensor, w: Tensor, client: Client, did: Did) -> Client:
        return client._replace(memo={"seen": w.sum()})


def test_a_method_whose_state_changes_its_names_is_trained_by_the_loop(data: Dataset) -> None:
    said: list[str] = []
    setup = dataclasses.replace(a_run(data, "fedavg"), method=Noting())
    assert isinstance(trainer_for([setup], said.append), Loop)
    assert "trees that differ" in said[0]


class Moody(SmallCNN):
    """Computes otherwise while it is trained, without drawing anything."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return 0.5 * logits if self.training else logits


def test_steps_run_in_training_mode_and_measurements_do_not(data: Dataset) -> None:
    setup = prepare(SMALL, dataset=data, model=Moody)
    ((_, records),) = work(Crew(trainer_for([setup], print)), [setup])
    _, expected = by_loop(setup)
    for line, other in zip(records, expected, strict=True):
        assert line["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
        assert line["accuracy"] == pytest.approx(other["accuracy"], abs=0.02)
