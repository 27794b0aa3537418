"""Slots against the plain loop, on real digits: every method, unequal clients, more jobs than slots, runs mixed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from fedacd.data import Dataset
from fedacd.engine import clean
from fedacd.engine.crew import Crew, Loop
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup, prepare
from fedacd.engine.slots import Slots
from fedacd.engine.together import groups, trainer_for
from fedacd.errors import UpdateError
from fedacd.methods import METHODS
from fedacd.metrics import METRICS

ALL = pytest.mark.parametrize("name", METHODS)
SMALL: dict[str, Any] = {
    "partition.clients": 6,
    "partition.scheme": "dirichlet",
    "train.participation": 0.85,  # five of them
    "train.epochs": 2,
    "train.batch_size": 16,
    "train.rounds": 2,
    "train.clip": 0.5,  # so that clipping binds
    "run.slots": 2,
}
FEW_STEPS = {"method.match_steps": 3, "method.head_steps": 5}
"""CReFF's server, kept short."""


def some(digits: Dataset) -> Dataset:
    """Real digits, few of them."""
    return Dataset.from_arrays(
        digits.x_train[:240], digits.y_train[:240], digits.x_test[:100], digits.y_test[:100], name="some"
    )


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


def a_run(data: Dataset, name: str = "fedavg", **options: Any) -> Setup:
    values = SMALL | {"method.name": name} | (FEW_STEPS if name == "creff" else {})
    return prepare(values | {key.replace("__", "."): value for key, value in options.items()}, dataset=data)


def two_runs(data: Dataset, name: str, **options: Any) -> list[Setup]:
    """Of different seeds and betas: other weights, other clients, other sizes."""
    mixed = [{"run__seed": 0, "partition__beta": 0.3}, {"run__seed": 1, "partition__beta": 2.0}]
    setups = [a_run(data, name, **(options | differing)) for differing in mixed]
    assert all(len({len(members) for members in setup.members}) > 3 for setup in setups)
    return setups


Records = list[dict[str, Any]]


def by_loop(setup: Setup) -> tuple[Simulation, Records]:
    simulation = Simulation(setup)
    return simulation, [simulation.advance() for _ in range(setup.config.train.rounds)]


def work(crew: Crew, setups: Sequence[Setup]) -> list[tuple[Simulation, list[Any]]]:
    """Simulations and what became of them: their records, and what ended them."""
    found: dict[Simulation, list[Any]] = {Simulation(setup): [] for setup in setups}
    for simulation in found:
        crew.add(simulation)
    while crew.busy:
        for simulation, event in crew.turn():
            found[simulation].append(event)
    return list(found.items())


def by_slots(setups: Sequence[Setup], trainer: Slots | None = None) -> list[tuple[Simulation, list[Any]]]:
    trainer = trainer or slots_for(setups)
    return work(Crew(trainer), setups)


def slots_for(setups: Sequence[Setup]) -> Slots:
    made = trainer_for(setups, pytest.fail)
    assert isinstance(made, Slots)
    return made


def assert_same_records(found: Records, expected: Records, rel: float) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(theirs[key] is not None for key in METRICS)
        for key, value in theirs.items():
            if key == "told":
                assert mine[key].keys() == value.keys()
                for name in value:
                    assert mine[key][name] == pytest.approx(value[name], rel=rel, abs=rel), name
            elif key != "seconds":
                assert mine[key] == pytest.approx(value, rel=rel, abs=rel), key


def assert_same_bits(found: Simulation, expected: Simulation) -> None:
    assert found.state.round == expected.state.round
    torch.testing.assert_close(found.state, expected.state, rtol=0, atol=0)


def without_clock(records: list[Any]) -> Records:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_slots_equal_the_loop(setups: Sequence[Setup], tolerance: float = 1e-5) -> None:
    assert len(groups(setups)) == 1
    trainer = slots_for(setups)
    assert trainer.K == 2
    for (simulation, records), setup in zip(by_slots(setups, trainer), setups, strict=True):
        alone, expected = by_loop(setup)
        assert simulation.state.round == alone.state.round == 2
        torch.testing.assert_close(simulation.state, alone.state, rtol=tolerance, atol=tolerance)
        assert_same_records(records, expected, rel=10 * tolerance)
    assert 0.5 < trainer.about()["occupancy"] <= 1


@ALL
def test_slots_equal_the_loop(name: str, data: Dataset) -> None:
    """Weights, server state, what clients keep, and every number of the record, over two rounds."""
    assert_slots_equal_the_loop(two_runs(data, name), 1e-4 if name == "feddecorr" else 1e-5)


def test_runs_of_different_epochs_share_slots(data: Dataset) -> None:
    assert_slots_equal_the_loop([a_run(data, "fednova", train__epochs=epochs) for epochs in (1, 3)])


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedrod"])
def test_what_clients_keep_comes_back_from_slots(name: str, data: Dataset) -> None:
    """Against the test above being empty: it is there and has moved."""
    ((simulation, _),) = by_slots([a_run(data, name)])
    start = Simulation(a_run(data, name)).state.clients
    kept = [client.private | client.memo for client in simulation.state.clients]
    before = [client.private | client.memo for client in start]
    moved = [any(not torch.equal(a[key], b[key]) for key in b) for a, b in zip(kept, before, strict=True)]
    assert sum(moved) >= 5


@pytest.mark.parametrize(
    "options",
    [
        {"method__refresh": "epoch"},
        {"method__refresh": "epoch", "train__mixup": False},
        {"method__refresh": "step", "method__flatten": "outputs"},
        {"method__refresh": "step", "method__matrix": "running"},
        {"method__refresh": "step", "train__mixup_batch": "both"},
    ],
    ids=str,
)
def test_choices_of_fedacd_in_slots(options: dict[str, Any], data: Dataset) -> None:
    """Among them a clean pass before every epoch, for which slots stop at different steps."""
    assert_slots_equal_the_loop(two_runs(data, "fedacd", **options))


def test_a_pass_before_every_epoch_counts_in_slots(data: Dataset) -> None:
    """Against the test above being blind to it."""
    often, seldom = (by_loop(a_run(data, "fedacd", method__refresh=refresh))[0] for refresh in ("epoch", "step"))
    weights = (run.state.server.shared.params for run in (often, seldom))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-4)


def test_settings_that_differ_are_values_of_each_slot(data: Dataset) -> None:
    options: list[dict[str, Any]] = [
        {"method__lam": 0.0},
        {"method__lam": 3.0, "train__lr": 0.01, "train__momentum": 0.5},
        {"method__tau": 0.6, "train__clip": 0.1, "train__weight_decay": 0.1, "train__lr_decay": 0.5},
    ]
    assert_slots_equal_the_loop([a_run(data, "fedacd", **different) for different in options])


def test_test_images_that_are_too_many_to_be_kept_normalised(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [a_run(data)]
    few, many = slots_for(runs), slots_for(runs)
    ((_, kept),) = by_slots(runs, few)
    monkeypatch.setattr(clean, "MOST_READY", 100 * 8 * 8 * 4 - 1)
    ((_, afresh),) = by_slots(runs, many)
    assert [*few._measure._tests] == [100] and not many._measure._tests
    assert [line["per_class"] for line in kept] == [line["per_class"] for line in afresh]
    assert [line["risk"] for line in kept] == [line["risk"] for line in afresh]


def test_augmented_digits_in_slots(data: Dataset) -> None:
    assert_slots_equal_the_loop(two_runs(data, "fedacd", data__crop=1, data__flip=True))


def test_bf16_in_slots(data: Dataset) -> None:
    setups = two_runs(data, "fedacd", run__precision="bf16")
    for (simulation, _), setup in zip(by_slots(setups), setups, strict=True):
        same = {key: setup.config.flat()[key] for key in ("run.seed", "partition.beta")}
        exact, _ = by_loop(a_run(data, "fedacd", **same))
        params, expected = simulation.state.server.shared.params, exact.state.server.shared.params
        start = setup.net.initial
        for name, w in params.items():
            assert w.dtype == torch.float32
            moved, other = w - start[name], expected[name] - start[name]
            assert 0 < float((moved - other).norm()) < 0.2 * float(other.norm())


def test_slots_do_not_lag_behind_unequal_clients(data: Dataset) -> None:
    """With one more job always at hand a slot is idle at the end of the work only."""
    trainer = slots_for(setups := two_runs(data, "fedavg"))
    by_slots(setups, trainer)
    steps = sum(len(plan) for plan in _plans(setups))
    assert trainer._busy_steps == steps
    assert trainer.about()["occupancy"] > 0.85


def _plans(setups: Sequence[Setup]) -> list[Any]:
    found = []
    for setup in setups:
        simulation = Simulation(setup)
        for _ in range(setup.config.train.rounds):
            jobs = simulation.open()
            found += [job.plan.size for job in jobs.values()]
            for number, outcome in one_by_one(jobs).items():
                simulation.feed(number, outcome)
            simulation.close()
    return found


def one_by_one(jobs: dict[int, Any]) -> dict[int, Any]:
    loop = Loop()
    found: dict[int, Any] = {}
    for number, job in jobs.items():
        loop.start(number, job)
        found |= dict(loop.collect())
    return found


# One slot's trouble is not another's.


def test_a_run_gives_the_same_bits_alone_or_in_company(data: Dataset) -> None:
    """With as many slots; whichever of them its clients come to lie in."""
    first, second = two_runs(data, "fedacd")
    ((alone, records),) = by_slots([first])
    for company in ([first, second], [second, first]):
        together = by_slots(company)
        simulation, beside = together[company.index(first)]
        assert_same_bits(simulation, alone)
        assert without_clock(beside) == without_clock(records)


@pytest.mark.parametrize("name", ["fedavg", "fedacd", "scaffold"])
def test_numbers_that_are_not_finite_stay_in_their_slot(name: str, data: Dataset) -> None:
    """A learning rate out of all bounds fills its slots with NaN; the neighbour has the bits that it has without."""
    bad = a_run(data, name, run__seed=1, train__lr=1e30, train__clip=0.0)
    good = a_run(data, name)
    assert len(groups([bad, good])) == 1
    ((alone, expected),) = by_slots([good], slots_for([bad, good]))
    (_, events), (beside, records) = by_slots([bad, good])
    assert isinstance(events[-1], UpdateError)
    assert not any(isinstance(event, dict) for event in events)
    assert "is not finite" in str(events[-1])
    assert_same_bits(beside, alone)
    assert without_clock(records) == without_clock(expected)


def test_one_clients_nan_stays_in_its_slot(data: Dataset) -> None:
    """Beside the others of its own run, and after it in the same slot."""
    setup = a_run(data, "scaffold", run__slots=3)
    jobs = Simulation(setup).open()
    sick = next(iter(jobs))
    client = jobs[sick].client
    ill = client._replace(memo={name: torch.full_like(tensor, torch.nan) for name, tensor in client.memo.items()})
    well, beside = (
        all_of({sick: jobs[sick]._replace(client=state)} | {n: job for n, job in jobs.items() if n != sick}, setup)
        for state in (client, ill)
    )
    assert any(not tensor.isfinite().all() for tensor in beside.pop(sick).reply.params.values())
    well.pop(sick)
    torch.testing.assert_close(beside, well, rtol=0, atol=0)


def all_of(jobs: dict[int, Any], setup: Setup) -> dict[int, Any]:
    """Outcomes by slots."""
    trainer, waiting, found = slots_for([setup]), list(jobs.items()), dict[int, Any]()
    while waiting or trainer.busy:
        while waiting and trainer.free:
            trainer.start(*waiting.pop(0))
        trainer.launch()
        found |= dict(trainer.collect())
    return found


def test_an_idle_slot_moves_nothing(data: Dataset) -> None:
    """Neither one that has never had a client nor one whose client has made its last step."""
    setup = a_run(data, "scaffold")
    simulation, trainer = Simulation(setup), slots_for([setup])
    number, job = next(iter(simulation.open().items()))
    trainer.start(number, job)
    trainer.launch()
    assert trainer._stack is not None
    before = pytree.tree_map(torch.clone, trainer._stack)
    trainer._run()
    torch.testing.assert_close(trainer._stack, before, rtol=0, atol=0)
    trainer._position[0] = job.plan.steps - 1
    trainer._stack.position[0] -= 1
    trainer._run()  # with a step left it does move
    assert not all(map(torch.equal, pytree.tree_leaves(trainer._stack.moving), pytree.tree_leaves(before.moving)))


def test_a_client_in_many_slots(data: Dataset) -> None:
    """One client in three slots, and then one in a slot where another one has been."""
    setup = a_run(data, "scaffold", run__slots=3)
    simulation, trainer = Simulation(setup), slots_for([setup])
    jobs = list(simulation.open().items())
    results = []
    for number, job in jobs[:2]:
        trainer.start(number, job)
        assert trainer.free == 2
        while trainer.busy:
            trainer.launch()
            results += trainer.collect()
    assert [tag for tag, _ in results] == [number for number, _ in jobs[:2]]
    expected = one_by_one(dict(jobs[:2]))
    for number, outcome in results:
        assert not isinstance(outcome, Exception)
        torch.testing.assert_close(outcome, expected[number], rtol=1e-5, atol=1e-5)


def test_a_job_changes_none_of_what_it_was_given(data: Dataset) -> None:
    setup = a_run(data, "scaffold")
    simulation, trainer = Simulation(setup), slots_for([setup])
    jobs = simulation.open()

    def given() -> Any:
        return [(job.shared, job.client, job.images.tensors, job.members) for job in jobs.values()], setup.net.initial

    before = pytree.tree_map(torch.clone, given())
    for number, job in list(jobs.items())[:2]:
        trainer.start(number, job)
    trainer.launch()
    trainer.collect()
    torch.testing.assert_close(given(), before, rtol=0, atol=0)


def test_a_dropped_job_leaves_its_slot_free_and_the_others_alone(data: Dataset) -> None:
    setup = a_run(data, "fedavg")
    simulation, trainer = Simulation(setup), slots_for([setup])
    (first, job), (second, other), *_ = simulation.open().items()
    trainer.start(first, job)
    trainer.start(second, other)
    trainer.drop(lambda tag: tag == first)
    assert (trainer.free, trainer.busy) == (1, True)
    found: dict[Any, Any] = {}
    while trainer.busy:
        trainer.launch()
        found |= dict(trainer.collect())
    assert list(found) == [second]
    torch.testing.assert_close(found[second], one_by_one({second: other})[second], rtol=1e-5, atol=1e-5)
