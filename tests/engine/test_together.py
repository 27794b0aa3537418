"""Which runs share a program, and which trainer they get."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from fedacd.cli import app
from fedacd.data import Dataset
from fedacd.engine.crew import Loop
from fedacd.engine.setup import Setup, prepare
from fedacd.engine.slots import Slots
from fedacd.engine.together import groups, trainer_for, workers_for
from fedacd.models import SmallCNN
from tests.engine.test_slots import some

SMALL: dict[str, Any] = {"partition.clients": 6, "train.participation": 0.5, "train.epochs": 2, "run.slots": 2}


@pytest.fixture(scope="module")
def data(digits: Dataset) -> Dataset:
    return some(digits)


def a_run(data: Dataset, model: Any = None, **options: Any) -> Setup:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return prepare(SMALL | named, dataset=data, model=model)


@pytest.mark.parametrize(
    "differing",
    [
        {"run__seed": 1}, {"partition__beta": 0.5}, {"train__lr": 0.1}, {"method__lam": 0.5}, {"method__tau": 0.5},
        {"train__momentum": 0.5}, {"train__weight_decay": 0.1}, {"train__clip": 1.0}, {"train__lr_decay": 0.5},
        {"train__rounds": 7}, {"train__epochs": 3}, {"train__participation": 1.0}, {"partition__clients": 9},
        {"train__mixup_alpha": 1.0}, {"train__mixup_partners": "even"}, {"run__save_every": 2},
        {"method__missing": 0.1}, {"run__eval_every": 2},
    ],
    ids=str,
)  # fmt: skip
def test_runs_that_share_a_program(differing: dict[str, Any], data: Dataset) -> None:
    one, other = a_run(data), a_run(data, **differing)
    assert groups([one, other]) == [[one, other]]


@pytest.mark.parametrize(
    "differing",
    [
        {"train__batch_size": 32}, {"train__mixup": False}, {"run__precision": "bf16"}, {"model": SmallCNN},
        {"method__name": "fedavg"}, {"method__refresh": "epoch"}, {"method__flatten": "outputs"},
        {"method__refresh": "step", "method__matrix": "running"},
        {"method__score": "sum"}, {"data__crop": 1}, {"data__flip": True},
        {"data__mean": [0.5]}, {"run__slots": 3}, {"train__mixup_batch": "both"},
    ],
    ids=str,
)  # fmt: skip
def test_runs_that_do_not(differing: dict[str, Any], data: Dataset) -> None:
    one, third = a_run(data), a_run(data, run__seed=5)
    model = Wide if differing.get("model") else None
    other = a_run(data, model, **{key: value for key, value in differing.items() if key != "model"})
    assert groups([one, other, third]) == [[one, third], [other]]


def test_other_data_are_another_program(data: Dataset) -> None:
    other = Dataset.from_arrays(data.x_train[::-1], data.y_train[::-1], data.x_test, data.y_test, name="some")
    assert len(groups([a_run(data), a_run(other)])) == 2


class Wide(SmallCNN):
    """Another class with the same layers."""


class Noisy(SmallCNN):
    """With constants that no run trains and that its seed draws."""

    offset: Tensor

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.register_buffer("offset", torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.offset)


class Frozen(SmallCNN):
    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.mixing = nn.Linear(shape[2], shape[2], bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.mixing(x))


@pytest.mark.parametrize("model", [Noisy, Frozen])
def test_constants_that_a_seed_draws_are_not_shared(model: Any, data: Dataset) -> None:
    runs = [a_run(data, model, run__seed=seed, train__lr=lr) for seed, lr in ((0, 0.1), (1, 0.1), (0, 0.2))]
    assert groups(runs) == [[runs[0], runs[2]], [runs[1]]]


class Leaky(SmallCNN):
    """Computes with a number that neither its layers nor its code shows."""

    given = 0.1

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.slope = Leaky.given

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.leaky_relu(x, self.slope))


def test_models_of_one_name_that_compute_with_other_numbers_are_not_shared(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for slope, seed in ((0.1, 0), (0.2, 0), (0.1, 1)):
        monkeypatch.setattr(Leaky, "given", slope)
        runs.append(a_run(data, Leaky, run__seed=seed))
    assert groups(runs) == [[runs[0], runs[2]], [runs[1]]]


def test_without_slots_every_run_is_on_its_own(data: Dataset) -> None:
    runs = [a_run(data, run__slots=None, run__device="cpu", run__seed=seed) for seed in (0, 0, 1)]
    assert groups(runs) == [[run] for run in runs]
    assert isinstance(trainer_for(runs[:1], pytest.fail), Loop)


def test_slots_have_room_for_the_longest_client_of_all_runs(data: Dataset) -> None:
    runs = [a_run(data, partition__scheme="dirichlet", partition__beta=beta, run__seed=7) for beta in (100.0, 0.1)]
    trainer = trainer_for(runs, pytest.fail)
    assert isinstance(trainer, Slots)
    longest = max(len(members) for run in runs for members in run.members)
    assert longest > max(map(len, runs[0].members))
    assert 2 * -(-longest // 64) == trainer.S


def test_slots_have_room_for_the_most_epochs_of_all_runs(data: Dataset) -> None:
    one, more = a_run(data), a_run(data, train__epochs=7)
    trainer, alone = trainer_for([one, more], pytest.fail), trainer_for([one], pytest.fail)
    assert isinstance(trainer, Slots)
    assert isinstance(alone, Slots)
    assert trainer.S == alone.S / 2 * 7


@pytest.mark.parametrize(
    ("sizes", "slots"),
    [
        ([10] * 6, 6),
        ([130, 10, 10, 10, 10, 10], 3),  # 3 steps an epoch beside 5 clients of 1: 8 in all
        ([200, 10], 2),  # 4 and 1
    ],
)
def test_no_more_slots_than_a_round_keeps_busy(
    sizes: list[int], slots: int, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedacd.engine.together.uses_slots", lambda setup: True)
    ends = np.cumsum(sizes)
    members = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    setup = prepare({"run.device": "cpu", "train.participation": 1.0}, dataset=data, members=members)
    trainers = [trainer_for([setup] * runs, pytest.fail) for runs in (1, 9)]
    expected = [slots, min(24, math.ceil(9 * _useful(sizes)))]
    assert [trainer.K for trainer in trainers if isinstance(trainer, Slots)] == expected


def _useful(sizes: list[int]) -> float:
    steps = [-(-size // 64) for size in sizes]
    return sum(steps) / max(steps)


def test_workers_are_cores_but_no_more_than_participants(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedacd.engine.together.cores", lambda: 8)
    assert workers_for(a_run(data, run__slots=None)) == 3
    assert workers_for(a_run(data, run__slots=None, run__workers=1)) == 1
    assert workers_for(a_run(data)) == 1
    monkeypatch.setattr("fedacd.engine.together.cores", lambda: 2)
    assert workers_for(a_run(data, run__slots=None)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "0"], "run.slots = 0: must be a whole number at least 1 and at most 4096."),
        (["--slots", "many"], "run.slots = 'many': must be a whole number at least 1 and at most 4096."),
        (["--slots", "1.5"], "run.slots = 1.5: must be a whole number at least 1 and at most 4096."),
        (["--slots", "1" + 20 * "0"], f"run.slots = 1{20 * '0'}: must be a whole number at least 1 and at most 4096."),
        (["--workers", "0"], "run.workers = 0: must be a whole number at least 1."),
        (["--workers", "99"], "run.workers = 99: this machine has 8 cores for them."),
        (["--workers", "3"], "run.workers = 3: only 2 clients train in a round."),
        (["--workers", "2", "--participation", "0.01"], "run.workers = 2: only 1 client trains in a round."),
        (["--workers", "2", "--slots", "2"], "run.workers = 2: "),
        (["--precision", "fp8"], "run.precision = 'fp8': must be one of fp32, tf32, bf16."),
        (["--set", "run.threads=0"], "run.threads = 0: must be a whole number at least 1 and at most 1024."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_values_are_one_message(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedacd.engine.setup.cores", lambda: 8)
    base = ["run", "--dataset", "digits", "--clients", "4", "--participation", "0.5", "--device", "cpu"]
    result = CliRunner().invoke(app, [*base, "--rounds", "1", "--epochs", "1", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*"))
