"""Runs side by side through `train_all`: a failure is one run's own, Ctrl-C saves all of them."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedacd.api import Result, train, train_all
from fedacd.config import setting
from fedacd.data import Dataset
from fedacd.engine.crew import Loop
from fedacd.engine.local import Job
from fedacd.engine.program import program
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup, prepare
from fedacd.engine.together import groups
from fedacd.engine.underway import Later
from fedacd.errors import RecordError, UpdateError
from fedacd.methods import Client, Did, FedAvg, Server, Shared, Tensors, Total, Trained
from fedacd.models.net import Net
from fedacd.records import finished_rounds, read_rounds
from tests.engine.test_memory import Full
from tests.engine.test_slots import by_slots, some

SMALL: dict[str, Any] = {
    "partition.clients": 4,
    "train.epochs": 1,
    "train.participation": 1.0,
    "train.batch_size": 32,
    "train.rounds": 3,
    "run.workers": 1,
    "run.save_every": 1000,
}
ENGINES = pytest.mark.parametrize("slots", [None, 3, 8], ids=["loop", "three slots", "eight slots"])


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


def a_run(data: Dataset, out: Path, slots: int | None, method: FedAvg | None = None, **options: Any) -> Setup:
    values = SMALL | {"run.slots": slots, "run.out": out} | ({} if method else {"method.name": "fedavg"})
    named = {key.replace("__", "."): value for key, value in options.items()}
    return prepare(values | named, dataset=data, method=method)


def numbers(folder: Path) -> tuple[Any, ...]:
    """All that a run decides: the bytes of its weights, and its record but for the clock."""
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(folder)]
    return (folder / "state.safetensors").read_bytes(), (folder / "model.safetensors").read_bytes(), lines


class OwnError(Exception):
    """A mistake in somebody's own method."""


@dataclass(frozen=True, kw_only=True)
class Moody(FedAvg):
    """Fails as its settings say; numbers, so that runs which differ in them share a program."""

    in_finish: float = setting(0.0, "fail after training", at_least=0)
    in_combine: float = setting(0.0, "fail on the server", at_least=0)

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        if self.in_finish:
            raise OwnError("in finish")
        return super().finish(now, shared, client, did)

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        if self.in_combine:
            raise OwnError("in combine")
        return super().combine(net, server, total, num_clients, rng)


@dataclass(frozen=True, kw_only=True)
class FailingLoss(FedAvg):
    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        raise OwnError("in loss")


def assert_trained(result: Result | Exception) -> Result:
    assert isinstance(result, Result), repr(result)
    assert len(result.history) == 3
    return result


@ENGINES
@pytest.mark.parametrize("where", ["finish", "combine"])
def test_a_method_that_raises_ends_its_own_run(where: str, slots: int | None, data: Dataset, tmp_path: Path) -> None:
    """Also where several of its clients fail at the same time. The others share its slots."""
    bad_one = Moody(in_finish=1.0) if where == "finish" else Moody(in_combine=1.0)
    methods = [Moody(), bad_one, Moody()]
    setups = [a_run(data, tmp_path / str(n), slots, method, run__seed=n) for n, method in enumerate(methods)]
    assert len(groups(setups)) == (1 if slots else 3)
    first, bad, last = train_all(setups)
    assert isinstance(bad, OwnError)
    assert str(bad) == f"in {where}"
    assert_trained(first)
    assert_trained(last)
    alone = a_run(data, tmp_path / "alone", slots, Moody(), run__seed=2)
    train(alone)
    assert numbers(tmp_path / "2") == numbers(tmp_path / "alone")


@ENGINES
def test_a_loss_that_raises_ends_its_own_run(slots: int | None, data: Dataset, tmp_path: Path) -> None:
    methods = [FailingLoss(), Moody()]
    bad, good = train_all([a_run(data, tmp_path / str(n), slots, method) for n, method in enumerate(methods)])
    assert isinstance(bad, OwnError)
    assert_trained(good)


def test_a_step_that_raises_later_on_leaves_other_programs_running(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def loss(self: Moody, *arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OwnError("in loss, later")
        return FedAvg.loss(self, *arguments)

    monkeypatch.setattr(Moody, "loss", loss)
    setups = [a_run(data, tmp_path / str(n), 3, method) for n, method in enumerate([Moody(), FedAvg()])]
    bad, good = train_all(setups)
    assert isinstance(bad, OwnError)
    assert calls == 13
    assert_trained(good)


@ENGINES
def test_a_run_that_diverges_is_a_result_like_others(slots: int | None, data: Dataset, tmp_path: Path) -> None:
    bad: dict[str, Any] = {"train__lr": 1e30, "train__clip": 0.0}
    setups = [a_run(data, tmp_path / str(n), slots, run__seed=n, **(bad if n == 0 else {})) for n in range(2)]
    assert len(groups(setups)) == (1 if slots else 2)
    diverged, good = train_all(setups)
    assert isinstance(diverged, UpdateError)
    assert "is not finite. A smaller train.lr (now 1e+30) often helps." in str(diverged)
    assert_trained(good)
    train(a_run(data, tmp_path / "alone", slots, run__seed=1))
    assert numbers(tmp_path / "1") == numbers(tmp_path / "alone")
    assert (tmp_path / "0" / "config.toml").exists()


@ENGINES
def test_a_callback_that_raises_ends_the_run_it_was_told_of(slots: int | None, data: Dataset, tmp_path: Path) -> None:
    setups = [a_run(data, tmp_path / str(n), slots, run__seed=n) for n in range(2)]

    def on_round(setup: Setup, record: dict[str, Any]) -> None:
        if setup is setups[0]:
            raise OwnError("told")

    stopped, good = train_all(setups, on_round)
    assert isinstance(stopped, OwnError)
    assert_trained(good)
    assert len(read_rounds(tmp_path / "0")) == finished_rounds(tmp_path / "0") == 1


def test_a_folder_in_use_ends_the_run_that_wants_it(data: Dataset, tmp_path: Path) -> None:
    setups = [a_run(data, tmp_path / name, 3, run__seed=n) for n, name in enumerate(("taken", "taken", "free"))]
    first, second, third = train_all(setups)
    assert_trained(first)
    assert isinstance(second, RecordError)
    assert "is in use" in str(second)
    assert_trained(third)


@ENGINES
@pytest.mark.parametrize("at", [(0, 1), (1, 2)])
def test_ctrl_c_saves_all_runs_and_they_go_on_to_the_same_bits(
    at: tuple[int, int], slots: int | None, data: Dataset, tmp_path: Path
) -> None:
    """Also a run whose record was ready at that moment but not yet written."""

    def runs(where: str) -> list[Setup]:
        even: dict[str, Any] = {"partition__scheme": "iid"}  # equal clients: rounds end together
        return [a_run(data, tmp_path / where / str(n), slots, run__seed=n, **even) for n in range(2)]

    whole, stopped = runs("whole"), runs("stopped")
    train_all(whole)

    def interrupt(setup: Setup, record: dict[str, Any]) -> None:
        if (stopped.index(setup), record["round"]) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all(stopped, interrupt)
    for setup in stopped:
        found = finished_rounds(setup.out) or 0
        assert found == len(read_rounds(setup.out))
    assert finished_rounds(stopped[at[0]].out) == at[1]
    again = runs("stopped")
    for result in train_all(again):
        assert_trained(result)
    for one, other in zip(whole, again, strict=True):
        assert numbers(one.out) == numbers(other.out)


def test_runs_by_the_loop_give_the_same_bits_alone_or_in_company(data: Dataset, tmp_path: Path) -> None:
    setups = [a_run(data, tmp_path / str(n), None, run__seed=n) for n in range(2)]
    train_all(setups)
    for n, setup in enumerate(setups):
        train(a_run(data, tmp_path / f"alone{n}", None, run__seed=n))
        assert numbers(setup.out) == numbers(tmp_path / f"alone{n}")
        simulation = Simulation(setup)
        for _ in range(3):
            simulation.advance()
        loaded = Result.load(setup.out).model
        torch.testing.assert_close(dict(loaded.shared.params), simulation.state.server.shared.params, rtol=0, atol=0)


def test_out_of_memory_with_one_slot_is_a_clear_error(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedacd.engine.slots.finish", Full(None, *range(1, 100)))
    said: list[str] = []
    (result,) = train_all([a_run(data, tmp_path / "run", 1)], say=said.append)
    assert isinstance(result, UpdateError)
    assert str(result).startswith("not even one client fits into the device's memory")
    assert said == []
    monkeypatch.undo()
    assert_trained(train(a_run(data, tmp_path / "run", 1)))


def test_the_loop_trains_what_it_was_given_last_and_forgets_what_it_is_told_to(data: Dataset, tmp_path: Path) -> None:
    jobs: Sequence[Job] = list(Simulation(a_run(data, tmp_path, None)).open().values())
    loop = Loop()
    assert (loop.free, loop.busy, loop.collect()) == (1, False, [])
    loop.start("a", jobs[0])
    assert (loop.free, loop.busy) == (0, True)
    loop.drop(lambda tag: tag == "b")
    assert loop.busy
    loop.drop(lambda tag: tag == "a")
    assert not loop.busy
    loop.start("b", jobs[1])
    ((tag, outcome),) = loop.collect()
    assert tag == "b"
    assert not isinstance(outcome, Exception)
    assert not loop.busy


def test_a_program_that_cannot_be_made_fails_every_run_that_needs_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the first alone, with the second left to train nothing."""
    made, times = program, 0

    def failing_once(*arguments: Any, **named: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            raise RuntimeError("cannot be captured")
        return made(*arguments, **named)

    monkeypatch.setattr("fedacd.engine.slots.program", failing_once)
    first, second = train_all([a_run(data, tmp_path / str(seed), 3, run__seed=seed) for seed in range(2)])
    assert isinstance(first, RuntimeError)
    assert_trained(second)
    assert isinstance(second, Result)
    assert second.history[0]["train_loss"] > 0


@dataclass(frozen=True, kw_only=True)
class Shuffling(FedAvg):
    """Keeps two tensors of one shape, and hands them back in another order than it got them."""

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {}, {"a": torch.zeros(2), "b": torch.ones(2)})

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        pull = client.memo["b"].sum() * sum(w.square().sum() for w in now.params.values())
        return super().loss(out, y, w, now, shared, client) + 0.05 * pull

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        return client._replace(memo={"b": client.memo["b"], "a": client.memo["a"]}), {}, {"n": did.n}


def test_tensors_are_known_by_their_names_not_by_their_order(data: Dataset, tmp_path: Path) -> None:
    loop, together = (train(a_run(data, tmp_path / str(slots), slots, Shuffling())).history for slots in (None, 3))
    assert [line["train_loss"] for line in together] == pytest.approx([line["train_loss"] for line in loop], rel=1e-4)


def test_a_run_that_has_ended_is_let_go(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = weakref.WeakSet[Simulation]()
    most = 0

    class Counted(Simulation):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            alive.add(self)

    monkeypatch.setattr("fedacd.training.Simulation", Counted)
    monkeypatch.setattr("fedacd.training.AT_ONCE", 1)

    def count(*_: object) -> None:
        nonlocal most
        gc.collect()
        most = max(most, len(alive))

    train_all([a_run(data, tmp_path / str(seed), 3, run__seed=seed) for seed in range(4)], count)
    assert most <= 2


def test_numbers_that_arrive_late_are_recorded_with_their_state(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_all([a_run(data, tmp_path / "at once", 3, train__rounds=5, run__save_every=1)])
    monkeypatch.setattr(Later, "arrived", False)  # as from a busy GPU: they are waited for in the end
    (found,) = train_all([a_run(data, tmp_path / "late", 3, train__rounds=5, run__save_every=1)])
    assert isinstance(found, Result)
    assert [line["round"] for line in found.history] == [1, 2, 3, 4, 5]
    assert numbers(tmp_path / "late") == numbers(tmp_path / "at once")


def test_a_run_that_fails_late_fails_once(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Later, "arrived", False)
    bad = a_run(data, tmp_path / "bad", 3, run__seed=1, train__lr=1e30, train__clip=0.0, train__rounds=6)
    good = a_run(data, tmp_path / "good", 3, train__rounds=6)
    (_, events), (_, records) = by_slots([bad, good])
    assert [type(event) for event in events] == [UpdateError]
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
