"""Which runs a table needs, worked out without any data.

A run is known by its settings. What only the data can tell (their statistics and their fingerprint) is left open here:
everything else is resolved as `fedacd.engine.setup.prepare` does, from the defaults of the data set and the method.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedacd.config import Config, without_effect
from fedacd.data import NAMED
from fedacd.errors import ConfigError
from fedacd.methods import METHODS
from fedacd.tables.declare import SETTING, Column, Row, Table

FROM_DATA = frozenset({"data.mean", "data.std", "data.fingerprint"})
OWN: dict[str, dict[str, Any]] = {
    "601415ca8084038a": {"data.mean": [0.4914, 0.48216, 0.44653], "data.std": [0.24703, 0.24349, 0.26159]},
    "a31e492b2b53c05b": {"data.mean": [0.50708, 0.48655, 0.44092], "data.std": [0.26733, 0.25644, 0.27615]},
}
"""Of cifar10 and cifar100 the statistics to five digits, by the fingerprint: a run may have been given others."""
CHOSEN = frozenset({"run.seed", "run.precision", "train.rounds"})
"""Settings that options of the command choose, for all cells of a table alike."""


@functools.cache
def plain() -> Mapping[str, Any]:
    """Every setting's default, method and model apart."""
    return {key: value for key, value in Config().flat().items() if not key.startswith(("method.", "model."))}


def resolve(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The whole `Config.identity` of a run, but for `FROM_DATA`."""
    flat = {**plain(), "model.name": None, **settings}
    kind, known = METHODS[flat["method.name"]], NAMED[flat["data.name"]]
    _fill(flat, known.defaults)
    _fill(flat, kind.defaults(known.name, str(flat["model.name"])))
    options = {key.removeprefix("method."): flat[key] for key in flat if key.startswith("method.")}
    del options["name"]
    method = kind.build(options)
    flat |= {f"method.{key}": value for key, value in dataclasses.asdict(method).items()}
    return {key: value for key, value in flat.items() if key not in without_effect(flat) | FROM_DATA}


def _fill(flat: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    flat |= {key: value for key, value in defaults.items() if flat.get(key) is None}


def key_of(identity: Mapping[str, Any], without: Iterable[str] = ()) -> str:
    """A text that two runs have in common when they are the same run."""
    left_out = {*FROM_DATA - not_own(identity).keys(), *without_effect(identity), *without}
    kept = {key: _number(value) for key, value in identity.items() if key not in left_out and value is not None}
    return json.dumps(kept, sort_keys=True, default=str)


def not_own(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The data set's own statistics, of those in which a run has others; none where they are not known."""
    own = OWN.get(str(settings.get("data.fingerprint")), {})
    return {key: value for key, value in own.items() if _digits(settings.get(key, value)) not in (None, _digits(value))}


def _digits(values: Any) -> Any:
    is_list = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    return [f"{value:.5g}" for value in values] if is_list else values


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True, kw_only=True)
class Want:
    """A run that a table needs."""

    name: str
    settings: Mapping[str, Any]
    """What goes into `prepare`."""
    identity: Mapping[str, Any]
    declared: frozenset[str]
    """The settings by which the table's rows and columns differ."""

    @functools.cached_property
    def key(self) -> str:
        return key_of(self.identity)

    @property
    def dataset(self) -> str:
        return str(self.settings["data.name"])

    @property
    def rounds(self) -> int:
        return int(self.settings["train.rounds"])


class Wanted:
    """The runs of a table, each once, and which of them feed a cell."""

    def __init__(self, table: Table, *, seeds: Sequence[int], rounds: int, precision: str) -> None:
        self.table, self.rounds, self.precision = table, rounds, precision
        runs: dict[str, Want] = {}
        self.cells: list[list[list[Want]]] = []
        """By row and column, one a seed."""
        for row in table.rows:
            line = [self._feeds(row, column, seeds) for column in table.columns]
            self.cells.append([[runs.setdefault(want.key, want) for want in feeds] for feeds in line])
        self.runs = sorted(runs.values(), key=lambda want: want.name)

    def _feeds(self, row: Row, column: Column, seeds: Sequence[int]) -> list[Want]:
        settings = self.table.settings(row, column) | {"train.rounds": self.rounds, "run.precision": self.precision}
        identity, declared = resolve(settings), frozenset({*row.settings, *column.settings})
        return [
            Want(
                name=f"{_name(settings)}-seed{seed}",
                settings=settings | {"run.seed": seed},
                identity=identity | {"run.seed": seed},
                declared=declared,
            )
            for seed in seeds
        ]


def _name(settings: Mapping[str, Any]) -> str:
    """cifar100-fedacd-beta0.1, and what sets it apart from the paper's setting."""
    first = f"{settings['data.name']}-{settings['method.name']}-beta{settings['partition.beta']:g}"
    usual = {"data.name", "method.name", "partition.beta", *CHOSEN}
    others = {key: value for key, value in settings.items() if key not in usual and SETTING.get(key) != value}
    return "-".join([first, *(f"{key.split('.')[1]}{value}" for key, value in sorted(others.items()))])


def shard(runs: Sequence[Want], text: str | None) -> list[Want]:
    """The part k/m of a table's runs: the same for everybody who asks, whatever is done already.

    Every part has its share of each data set, and in it runs that are neighbours by name: they share a method, and so
    a program.
    """
    if text is None:
        return list(runs)
    number, slash, parts = text.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ConfigError(f"shard = {text!r}: must be k/m, with k from 1 to m, such as 2/5.")
    k, m, chosen = int(number), int(parts), list[Want]()
    for dataset in sorted({want.dataset for want in runs}):
        own = sorted((want for want in runs if want.dataset == dataset), key=lambda want: want.name)
        chosen += own[(k - 1) * len(own) // m : k * len(own) // m]
    return chosen
