"""A device whose memory is full: fewer slots, nothing lost."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from fedacd.data import Dataset
from fedacd.engine import rounds, slots, underway
from fedacd.engine.crew import Crew
from fedacd.engine.local import finish
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup
from fedacd.engine.slots import Slots
from fedacd.engine.together import trainer_for
from fedacd.errors import UpdateError
from tests.engine.test_slots import assert_same_records, by_loop, some, two_runs, work


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


class Full:
    """Raises as a full device does, at the given calls of what it stands before."""

    def __init__(self, wrapped: Any, *at: int) -> None:
        self.wrapped, self.at, self.calls = wrapped, at, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls in self.at:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.wrapped(*arguments, **named)


def four_slots(data: Dataset, said: list[str], **options: Any) -> tuple[list[Setup], Slots]:
    setups = two_runs(data, "fedacd", run__slots=4, **options)
    trainer = trainer_for(setups, said.append)
    assert isinstance(trainer, Slots)
    return setups, trainer


@pytest.mark.parametrize(
    ("where", "at", "refresh"),
    [
        ("finish", 2, "step"),
        ("finish", 7, "epoch"),
        ("survey", 2, "epoch"),
        ("_slot_of", 3, "step"),
        ("step", 1, "step"),
    ],
)
def test_out_of_memory_halves_the_slots_and_loses_nothing(
    where: str, at: int, refresh: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the others' outcomes are being collected, in the middle of an epoch's passes, at a start, in the step."""
    said: list[str] = []
    setups, trainer = four_slots(data, said, method__refresh=refresh)
    full = Full(getattr(slots, where), at)
    monkeypatch.setattr(f"fedacd.engine.slots.{where}", full)
    found = work(Crew(trainer), setups)
    assert full.calls > at
    assert said == ["out of device memory: going on with 2 slots"]
    assert trainer.K == 2
    assert_as_by_loop(found, setups)


def assert_as_by_loop(found: Sequence[tuple[Simulation, Any]], setups: Sequence[Setup]) -> None:
    for (simulation, records), setup in zip(found, setups, strict=True):
        alone, expected = by_loop(setup)
        torch.testing.assert_close(simulation.state, alone.state, rtol=1e-5, atol=1e-5)
        assert_same_records(records, expected, rel=1e-4)


@pytest.mark.parametrize("where", ["open", "told", "add", "tally"])
def test_out_of_memory_in_sums_and_evaluation(where: str, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """They live on what the slots leave over, and are asked again when there is more."""
    said: list[str] = []
    setups, trainer = four_slots(data, said)
    if where == "open":
        full = Full(underway.Fold, 3)
        monkeypatch.setattr(rounds, "Fold", full)
    elif where == "told":
        full = Full(underway.witness_of, 4)
        monkeypatch.setattr(underway, "witness_of", full)
    elif where == "add":
        full = Full(underway.Fold.add, 3)
        monkeypatch.setattr(underway.Fold, "add", lambda fold, reply: full(fold, reply))
    else:
        trainer.tally = full = Full(trainer.tally, 2)
    found = work(Crew(trainer), setups)
    assert full.calls > full.at[0]
    assert said == ["out of device memory: going on with 2 slots"]
    assert_as_by_loop(found, setups)


def test_out_of_memory_again_and_again(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    setups, trainer = four_slots(data, said)
    monkeypatch.setattr("fedacd.engine.slots.finish", Full(finish, 2, 3))
    found = work(Crew(trainer), setups)
    assert said == [f"out of device memory: going on with {K} slots" for K in (2, 1)]
    for simulation, records in found:
        assert simulation.state.round == 2
        assert all(isinstance(record, dict) for record in records)


def test_slots_that_are_given_up_leave_no_tensor_behind(data: Dataset) -> None:
    setups, trainer = four_slots(data, [])
    for number, job in Simulation(setups[0]).open().items():
        if trainer.free:
            trainer.start(number, job)
    assert trainer._stack is not None
    held = {tensor.untyped_storage().data_ptr() for tensor in pytree.tree_leaves(trainer._stack)}
    trainer.shrink()
    left = [value for value in pytree.tree_leaves(vars(trainer)) if isinstance(value, torch.Tensor)]
    assert not held & {tensor.untyped_storage().data_ptr() for tensor in left}


def test_not_even_one_slot_fits(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    setups, trainer = four_slots(data, said)
    monkeypatch.setattr("fedacd.engine.slots.finish", Full(finish, *range(1, 1000)))
    with pytest.raises(UpdateError, match="not even one client fits into the device's memory"):
        work(Crew(trainer), setups)
    assert said == [f"out of device memory: going on with {K} slots" for K in (2, 1)]
