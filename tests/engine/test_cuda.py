"""The same runs on a GPU: compiled, captured, in slots. Skipped where there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedacd import data
from fedacd.api import Result, train_all
from fedacd.bench.job import Job, command, run_apart
from fedacd.bench.measure import Measured
from fedacd.data import Dataset
from fedacd.engine.program import program
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import arithmetic, prepare
from fedacd.errors import DataError
from fedacd.methods import METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(scope="module")
def images() -> Dataset:
    """Four thousand real images, so that clients are of unequal size."""
    try:
        whole = data.load("cifar10")
    except DataError:
        whole = data.load("digits")
    return Dataset.from_arrays(
        whole.x_train[:4000], whole.y_train[:4000], whole.x_test[:1000], whole.y_test[:1000], name="some"
    )


def settings(out: Path, **more: Any) -> dict[str, Any]:
    values = {
        "run.device": "cuda", "partition.clients": 6, "train.participation": 0.5, "train.epochs": 2,
        "train.rounds": 3, "model.name": "small-cnn", "run.out": str(out),
    }  # fmt: skip
    return values | {key.replace("__", "."): value for key, value in more.items()}


def trained(images: Dataset, runs: Sequence[dict[str, Any]]) -> list[Result]:
    results = train_all([prepare(values, dataset=images) for values in runs])
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Result)]


def weights(result: Result) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in result.model.shared.params.items()}


def test_a_program_keeps_the_tensors_it_works_on() -> None:
    total = torch.zeros(1000, device="cuda")
    run = program(lambda total, one: total.add_(one), total, torch.ones(1000, device="cuda"), say=print)
    total.zero_()
    torch.full((1000,), 7.0, device="cuda")  # takes the place of what was let go
    run()
    assert torch.equal(total, torch.ones_like(total))


@pytest.mark.parametrize("name", METHODS)
def test_slots_on_a_gpu_equal_the_loop_on_a_cpu(name: str, images: Dataset, tmp_path: Path) -> None:
    # FedDecorr divides by standard deviations near 0: with larger steps a millionth in the weights grows to 2 percent.
    lr, atol = (1e-4, 3e-4) if name == "feddecorr" else (1e-2, 1e-3)
    kind = settings(tmp_path, method__name=name, train__rounds=1, train__lr=lr)
    (fast,) = trained(images, [kind])
    setup = prepare(kind | {"run.device": "cpu"}, dataset=images)
    with arithmetic("fp32"):
        slow = Simulation(setup)
        record = slow.advance()
    for key, value in slow.state.server.shared.params.items():
        torch.testing.assert_close(weights(fast)[key], value, rtol=1e-2, atol=atol)
    for metric in ("accuracy", "accuracy_client", "risk"):
        assert fast.history[0][metric] == pytest.approx(record[metric], abs=0.02)
    assert fast.history[0]["train_loss"] == pytest.approx(record["train_loss"], rel=1e-3)


def test_the_same_bits_alone_and_in_company_where_asked_for(images: Dataset, tmp_path: Path) -> None:
    kinds = [settings(tmp_path / str(seed), run__seed=seed, run__deterministic=True) for seed in range(3)]
    together = trained(images, kinds)
    (alone,) = trained(images, [kinds[1] | {"run.out": str(tmp_path / "alone")}])
    for name, value in weights(alone).items():
        assert torch.equal(value, weights(together[1])[name])
    assert [line["accuracy"] for line in alone.history] == [line["accuracy"] for line in together[1].history]


def test_memory_does_not_grow_from_run_to_run(images: Dataset, tmp_path: Path) -> None:
    left = []
    for number in range(4):
        trained(images, [settings(tmp_path / str(number), train__rounds=1)])
        left.append(torch.cuda.memory_allocated())
    assert left[3] <= left[1] + 2**20


def test_runs_in_company_keep_their_numbers_to_rounding(images: Dataset, tmp_path: Path) -> None:
    kinds = [settings(tmp_path / f"{lam}", method__lam=lam, train__rounds=2) for lam in (0.1, 1.0, 10.0)]
    together = trained(images, kinds)
    alone = [trained(images, [kind | {"run.out": f"{kind['run.out']}-alone"}])[0] for kind in kinds]
    losses = [[line["train_loss"] for line in result.history] for result in together]
    assert losses[0] != losses[2]
    for (first, second), other in zip(losses, alone, strict=True):
        expected = [line["train_loss"] for line in other.history]
        assert first == pytest.approx(expected[0], rel=1e-3)
        assert second == pytest.approx(expected[1], rel=3e-2)  # a round later, rounding has grown


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_stays_close(precision: str, images: Dataset, tmp_path: Path) -> None:
    exact, rough = trained(
        images, [settings(tmp_path / kind, run__precision=kind, train__rounds=2) for kind in ("fp32", precision)]
    )
    assert rough.history[0]["train_loss"] == pytest.approx(exact.history[0]["train_loss"], rel=0.05)
    assert all(value.dtype == torch.float32 for value in weights(rough).values())


def test_a_resumed_run_goes_on_where_it_was(images: Dataset, tmp_path: Path) -> None:
    kind = settings(tmp_path / "whole", method__name="scaffold", run__deterministic=True, run__save_every=1)
    (whole,) = trained(images, [kind])

    class StopError(Exception):
        pass

    def stop(_: object, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise StopError

    cut = kind | {"run.out": str(tmp_path / "cut")}
    assert isinstance(train_all([prepare(cut, dataset=images)], stop)[0], StopError)
    (resumed,) = trained(images, [cut])
    for name, value in weights(resumed).items():
        assert torch.equal(value, weights(whole)[name])


def test_clients_rest_where_the_gpu_reaches_them(images: Dataset, tmp_path: Path) -> None:
    simulation = Simulation(prepare(settings(tmp_path, method__name="scaffold"), dataset=images))
    with arithmetic("fp32"):
        simulation.advance()
    for client in simulation.state.clients:
        assert all(tensor.is_pinned() for tensor in client.memo.values())


def test_two_numbers_of_clients_are_timed_in_one_process() -> None:
    names = ["scaffold-16", "scaffold-4"]
    turns = run_apart(Job(contestants=names, workload="growth", rounds=1, device="cuda:0", quick=True), command())
    many, few = (turn for turn in turns if isinstance(turn, Measured))
    assert many.samples == few.samples == 2 * 8
    assert many.peak_memory and few.peak_memory
