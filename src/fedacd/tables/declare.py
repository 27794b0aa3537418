"""The paper's nine tables as declarations: which runs feed a cell, what is measured, what the paper has.

A cell's run has the paper's setting, then the column's, then the row's; everything else is the default of the data set
and the method. Tables 1, 2, 3 and 9 measure the same runs, and the others share their column of the paper's setting.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedacd.errors import ConfigError, unknown
from fedacd.tables.paper import Reported, reported

SEEDS, ROUNDS = 3, 200
"""Runs behind a number of the paper, and their length."""

SETTING: Mapping[str, Any] = {
    "partition.scheme": "capped-dirichlet",
    "partition.clients": 20,
    "train.participation": 0.4,
    "train.rounds": ROUNDS,
    "train.epochs": 5,
    "train.batch_size": 64,
    "train.lr": 0.01,
    "train.momentum": 0.9,
}
"""Of every table, where its rows and columns say nothing else. Weight decay is the data set's own."""

DATASETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "Tiny-ImageNet": "tiny-imagenet"}
BETAS = (0.3, 0.1, 0.05)


class Metric(NamedTuple):
    """How a metric of a round is printed and compared."""

    scale: float
    decimals: int
    lower_is_better: bool


METRICS = {
    "accuracy": Metric(100, 2, False),
    "accuracy_client": Metric(100, 2, False),
    "risk": Metric(1, 3, True),
    "kl_local": Metric(1, 2, True),
    "kl_test": Metric(1, 2, True),
    "kl_test_99": Metric(1, 2, True),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    label: str
    settings: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.settings["method.name"])


@dataclass(frozen=True, kw_only=True)
class Column:
    label: str
    settings: Mapping[str, Any]
    metric: str
    paper: int
    """Which of the paper's columns it is compared with."""
    group: str = ""
    """What it has in common with its neighbours: a data set, a number of clients."""

    @property
    def dataset(self) -> str:
        return str(self.settings["data.name"])

    @property
    def beta(self) -> float:
        return float(self.settings["partition.beta"])


@dataclass(frozen=True, kw_only=True)
class Table:
    number: int
    title: str
    varies: str
    """What the labels of the columns are values of."""
    rows: Sequence[Row]
    columns: Sequence[Column]
    paper: Mapping[str, Sequence[Reported]]
    along_rows: bool = False
    """Whether the best is looked for in a row; otherwise in a column."""
    note: str = ""

    def settings(self, row: Row, column: Column) -> dict[str, Any]:
        """What feeds a cell, the seed apart."""
        return {**SETTING, **column.settings, **row.settings}

    def reported(self, row: Row, column: Column) -> Reported:
        return self.paper[row.label][column.paper]

    def cut(
        self,
        *,
        datasets: Collection[str] | None = None,
        methods: Collection[str] | None = None,
        betas: Collection[float] | None = None,
    ) -> "Table":
        """The same table with some of its rows and columns; names and values that it does not have are refused."""
        _known("data set", datasets, {column.dataset for column in self.columns}, self.number)
        _known("method", methods, {row.method for row in self.rows}, self.number)
        _known("beta", betas, {column.beta for column in self.columns}, self.number)
        return dataclasses.replace(
            self,
            rows=[row for row in self.rows if methods is None or row.method in methods],
            columns=[
                column
                for column in self.columns
                if (datasets is None or column.dataset in datasets) and (betas is None or column.beta in betas)
            ],
        )


def _known(what: str, given: Collection[Any] | None, known: Collection[Any], number: int) -> None:
    for item in given or ():
        if item not in known:
            raise ConfigError(unknown(f"{what} of table {number}", item, map(str, known)))


def _methods(labels: Sequence[str]) -> list[Row]:
    return [Row(label=label, settings={"method.name": label.lower()}) for label in labels]


def _grid(metric: str) -> list[Column]:
    """Data sets by beta."""
    pairs = [(group, name, beta) for group, name in DATASETS.items() for beta in BETAS]
    return [
        Column(
            group=group,
            label=f"{beta:g}",
            settings={"data.name": name, "partition.beta": beta},
            metric=metric,
            paper=number,
        )
        for number, (group, name, beta) in enumerate(pairs)
    ]


def _cifar100(number: int, label: object, settings: Mapping[str, Any] | None = None, group: str = "") -> Column:
    """Accuracy on CIFAR-100, at beta 0.1 where `settings` do not say otherwise."""
    own = {"data.name": "cifar100", "partition.beta": 0.1, **(settings or {})}
    return Column(group=group, label=str(label), settings=own, metric="accuracy", paper=number)


def _betas(metric: str, group: str = "") -> list[Column]:
    columns = [_cifar100(i, f"{beta:g}", {"partition.beta": beta}, group) for i, beta in enumerate(BETAS)]
    return [dataclasses.replace(column, metric=metric) for column in columns]


_TEN = ["FedAvg", "FedProx", "FedNova", "CReFF", "FedROD", "FedNTD", "FedDecorr", "FedLC", "FedNH", "FedACD"]

_FEDERATIONS = [(20, 0.2), (20, 0.4), (20, 0.6), (40, 0.4), (60, 0.4), (80, 0.4), (100, 0.4)]

_ALL = (
    Table(
        number=1,
        title="accuracy (%) of the global model, uniform labels",
        varies="beta",
        rows=_methods(_TEN),
        columns=_grid("accuracy"),
        paper=reported(1),
    ),
    Table(
        number=2,
        title="accuracy (%) of the global model on the clients' label mixes",
        varies="beta",
        rows=_methods(_TEN),
        columns=_grid("accuracy_client"),
        paper=reported(2),
    ),
    Table(
        number=3,
        title="adaptability risk: local models' error on the clients' label mixes",
        varies="beta",
        rows=_methods(_TEN),
        columns=_grid("risk"),
        paper=reported(3),
    ),
    Table(
        number=4,
        title="accuracy (%) by number of clients and participation, CIFAR-100, beta 0.1",
        varies="participation",
        rows=_methods(["FedAvg", "CReFF", "FedROD", "FedNTD", "FedDecorr", "FedNH", "FedACD"]),
        columns=[
            _cifar100(
                number,
                f"{ratio:g}",
                {"partition.clients": clients, "train.participation": ratio},
                f"{clients} clients",
            )
            for number, (clients, ratio) in enumerate(_FEDERATIONS)
        ],
        paper=reported(4),
    ),
    Table(
        number=5,
        title="accuracy (%) with and without input mixup",
        varies="beta",
        rows=[
            Row(
                label=f"{label}, {'mixup' if mixup else 'no mixup'}",
                settings={"method.name": label.lower(), "train.mixup": mixup},
            )
            for label in ("FedAvg", "FedROD", "FedLC", "FedNH", "FedACD")
            for mixup in (False, True)
        ],
        columns=_grid("accuracy"),
        paper=reported(5),
    ),
    Table(
        number=6,
        title="accuracy (%) by local epochs, CIFAR-100, beta 0.1",
        varies="epochs",
        rows=_methods(["FedAvg", "CReFF", "FedROD", "FedNTD", "FedDecorr", "FedLC", "FedNH", "FedACD"]),
        columns=[_cifar100(i, epochs, {"train.epochs": epochs}) for i, epochs in enumerate((3, 5, 7, 9, 11, 13, 15))],
        paper=reported(6),
    ),
    Table(
        number=7,
        title="accuracy (%) by the weight lambda of L2, CIFAR-100, beta 0.1",
        varies="lambda",
        rows=_methods(["FedACD"]),
        columns=[_cifar100(i, f"{lam:g}", {"method.lam": lam}) for i, lam in enumerate((0.5, 1.0, 1.5, 2.0))],
        paper=reported(7),
        along_rows=True,
    ),
    Table(
        number=8,
        title="accuracy (%) by aggregation, CIFAR-100: FedACD_base has equal weights",
        varies="beta",
        rows=[
            Row(label="FedACD_base", settings={"method.name": "fedacd", "method.weighting": "uniform"}),
            Row(label="FedACD", settings={"method.name": "fedacd", "method.weighting": "score"}),
        ],
        columns=_betas("accuracy"),
        paper=reported(8),
    ),
    Table(
        number=9,
        title="KL(P||Q) of local models, CIFAR-100",
        varies="beta",
        rows=_methods(_TEN),
        columns=[
            *_betas("kl_local", "own data"),
            *_betas("kl_test", "test set"),
            *_betas("kl_test_99", "test set, tau 0.99"),
        ],
        paper=reported(9),
        note="The paper does not say on which data P is taken: both are shown, beside the same numbers of the paper. "
        "Its baselines fit the test set and tau = 0.99, not the tau = 1 - 1e-5 of its text.",
    ),
)

TABLES: dict[int, Table] = {table.number: table for table in _ALL}


def find(number: str) -> Table:
    """A table by what a user wrote."""
    known = {str(key): table for key, table in TABLES.items()}
    if number not in known:
        raise ConfigError(f"table {number!r}: must be a whole number from {min(TABLES)} to {max(TABLES)}.")
    return known[number]
