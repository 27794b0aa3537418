"""What is trained in the bench: the workloads, their data, and the runs that they consist of."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedacd import data
from fedacd.bench import plain
from fedacd.data import Dataset
from fedacd.engine.plan import participants
from fedacd.engine.setup import Setup, prepare
from fedacd.errors import ConfigError, DataError, unknown

FULL_RUN = 200
"""Rounds of the run whose seconds are extrapolated: the paper's."""


class One(NamedTuple):
    """What sets one of several runs apart."""

    seed: int
    beta: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The same work for every contestant. Hashable: a loop keeps what it has loaded by it."""

    name: str
    what: str
    dataset: str
    num_classes: int
    num_train: int
    num_test: int
    """Few where nothing is evaluated but the last round, which does not count."""
    clients: int
    cohort: int
    epochs: int
    batch_size: int
    method: str
    scheme: str
    runs: tuple[One, ...]
    evaluated: bool
    """Whether this engine is timed with evaluation every round, too."""
    against_others: bool
    """Whether pfl and Flower take part."""
    min_size: int = 10
    held: int | None = None
    """Samples of every client, where they do not hold all of the data together."""
    sizes: tuple[int, ...] = ()
    """Numbers of clients to compare, instead of contestants."""
    rounds_on_cpu: int = 2
    rounds_on_gpu: int = 10
    """To be timed in a turn."""
    quick: bool = False

    @property
    def samples_a_round(self) -> float:
        """Samples trained in a round of one run, on average over rounds."""
        return self.cohort * (self.held or self.num_train / self.clients) * self.epochs


FEDERATION = Workload(
    name="federation",
    what="FedAvg, the paper's CNN, 100 clients of 500 samples, 10 a round, 5 epochs, batch 64, crop and flip",
    dataset="cifar10",
    num_classes=10,
    num_train=50_000,
    num_test=100,
    clients=100,
    cohort=10,
    epochs=5,
    batch_size=64,
    method="fedavg",
    scheme="iid",
    runs=(One(0, 0.1),),
    evaluated=False,
    against_others=True,
)

PAPER = Workload(
    name="paper",
    what="FedACD, the paper's CNN, CIFAR-100, 20 clients, 8 a round, 5 epochs, batch 64, mixup, crop and flip, "
    "9 runs at a time (3 seeds, beta 0.05, 0.1, 0.3)",
    dataset="cifar100",
    num_classes=100,
    num_train=50_000,
    num_test=10_000,
    clients=20,
    cohort=8,
    epochs=5,
    batch_size=64,
    method="fedacd",
    scheme="capped-dirichlet",
    runs=tuple(One(seed, beta) for seed in range(3) for beta in (0.05, 0.1, 0.3)),
    evaluated=True,
    against_others=False,
)

GROWTH = dataclasses.replace(
    FEDERATION,
    name="growth",
    what="FedACD and Scaffold, which keeps a state for every client, with 20 and with 1,000 clients of 50 samples, "
    "10 a round, the paper's CNN, CIFAR-100, 5 epochs of one step",
    dataset="cifar100",
    num_classes=100,
    clients=20,
    method="fedacd",
    scheme="custom",
    against_others=False,
    held=50,
    sizes=(20, 1000),
    rounds_on_cpu=8,
    rounds_on_gpu=300,
)

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (FEDERATION, PAPER, GROWTH)}


def find(name: str, *, device: str, quick: bool = False) -> Workload:
    """A workload by name; `quick`: the same in tiny, which shows that it works and nothing else.

    A CPU has nothing to gain from several runs at a time, so there it is one.
    """
    if name not in WORKLOADS:
        raise ConfigError(unknown("workload", name, WORKLOADS))
    workload = WORKLOADS[name]
    if not quick:
        if device == "cpu" and len(workload.runs) > 1:
            what = f"{workload.what.split(', 9 runs')[0]}, one run of beta 0.1"
            return dataclasses.replace(workload, what=what, runs=(One(0, 0.1),))
        return workload
    sizes = workload.sizes and (4, 16)
    clients = " or ".join(map(str, sizes or (4,)))
    what = (
        f"{workload.what.split(',')[0]}, the paper's CNN, {clients} clients, 2 a round, 1 epoch, batch 16, "
        "tiny random data"
    )
    return dataclasses.replace(
        workload,
        what=what,
        num_classes=4,
        num_train=128,
        num_test=20,
        clients=4,
        cohort=2,
        epochs=1,
        batch_size=16,
        runs=workload.runs[:2],
        min_size=1,
        held=workload.held and 8,
        sizes=sizes,
        rounds_on_cpu=1,
        rounds_on_gpu=1,
        quick=True,
    )


def load(workload: Workload) -> tuple[Dataset, bool]:
    """The data and whether they are real: the data set where the cache has it, else random images and labels."""
    if not workload.quick:
        try:
            found = data.load(workload.dataset)
        except DataError:
            pass
        else:
            test = slice(0, workload.num_test)
            return _dataset(workload, found.x_train, found.y_train, found.x_test[test], found.y_test[test]), True
    rng = np.random.default_rng(0)

    def draw(num: int) -> tuple[Any, Any]:
        images = rng.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)
        return images, rng.permutation(np.arange(num) % workload.num_classes)

    return _dataset(workload, *draw(workload.num_train), *draw(workload.num_test)), False


def _dataset(workload: Workload, *arrays: Any) -> Dataset:
    names = [str(number) for number in range(workload.num_classes)]
    return Dataset.from_arrays(*arrays, class_names=names, name=f"bench-{workload.dataset}")


def setups(
    workload: Workload, dataset: Dataset, settings: Mapping[str, Any], folder: Path = Path("runs")
) -> list[Setup]:
    """The runs of a workload, ready to start, each with a folder of its own in `folder`."""
    values = {
        "partition.scheme": workload.scheme,
        "partition.clients": workload.clients,
        "partition.min_size": workload.min_size,
        "method.name": workload.method,
        "model.name": "cnn",
        "data.crop": 4,
        "data.flip": True,
        "train.participation": workload.cohort / workload.clients,
        "train.epochs": workload.epochs,
        "train.batch_size": workload.batch_size,
        **settings,
    }
    return [
        prepare(
            {**values, "run.seed": one.seed, "partition.beta": one.beta, "run.out": str(folder / str(number))},
            dataset=dataset,
            members=_members(workload),
        )
        for number, one in enumerate(workload.runs)
    ]


def _members(workload: Workload) -> list[NDArray[np.int64]] | None:
    """The samples of each client, drawn from all; None where the scheme deals out the whole data set."""
    if workload.held is None:
        return None
    order = np.random.default_rng(0).permutation(workload.num_train)
    return [np.sort(part) for part in order[: workload.clients * workload.held].reshape(workload.clients, -1)]


def cohorts(runs: Sequence[Setup], rounds: int, device: torch.device) -> list[list[torch.Tensor]]:
    """The samples of every client of every round, for a loop that does one run at a time: the runs take turns."""
    chosen = []
    for round_ in range(1, rounds + 1):
        run = runs[(round_ - 1) % len(runs)]
        ratio = run.config.train.participation
        numbers = participants(run.config.run.seed, round_, len(run.members), ratio)
        chosen.append([torch.from_numpy(run.members[number]).to(device) for number in numbers])
    return chosen


def plain_data(run: Setup, device: torch.device) -> plain.Data:
    """A run's training data as the plain loop takes them."""
    settings = run.config.data
    return plain.Data(
        images=torch.tensor(run.dataset.x_train).permute(0, 3, 1, 2).contiguous().to(device),
        labels=torch.tensor(run.dataset.y_train, device=device),
        mean=torch.tensor(settings.mean, device=device),
        std=torch.tensor(settings.std, device=device),
        num_classes=run.dataset.num_classes,
    )


def plain_recipe(run: Setup) -> plain.Recipe:
    train, settings = run.config.train, run.config.data
    return plain.Recipe(
        method=str(run.config.method.name),
        epochs=train.epochs,
        batch_size=train.batch_size,
        lr=train.lr,
        momentum=train.momentum,
        weight_decay=train.weight_decay or 0.0,
        clip=train.clip,
        crop=settings.crop or 0,
        flip=bool(settings.flip),
        mixup=bool(train.mixup),
    )
