"""Which runs are repetitions of each other, which compete, and what each is called.

A problem is what methods compete on: data, partition, model, rounds, participation, epochs, batch size. A contestant
is a method with its settings. Runs of one contestant on one problem differ in the seed alone. A name says no more than
is needed to tell things apart: 'FedACD' and 'FedACD (mixup off)'.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePath
from typing import Any

from fedacd.config import Config
from fedacd.methods import METHODS
from fedacd.report.read import Run, told

TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
    "fashion-mnist": "Fashion-MNIST",
}

_OF_DATA = frozenset(f"data.{key}" for key in ("name", "fingerprint", "mean", "std"))
_OF_PROBLEM = _OF_DATA | {f"train.{key}" for key in ("rounds", "participation", "epochs", "batch_size")}

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Problem:
    dataset: str
    skew: str
    """'beta 0.1', 'iid', '2 classes a client'."""
    rest: str
    """What else sets it apart, such as 'epochs 10'; mostly empty."""
    num_classes: int
    class_names: list[str] | None

    @property
    def title(self) -> str:
        return ", ".join(filter(None, [self.dataset, self.skew, self.rest]))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one contestant on one problem, by seed."""

    problem: int
    method: int
    runs: list[Run]


@dataclass(frozen=True, kw_only=True)
class Grouped:
    problems: list[Problem]
    methods: list[str]
    groups: list[Group]


def group(runs: Sequence[Run], notes: list[str]) -> Grouped:
    """Sort runs into groups; FedACD comes first, then the order in which the package lists its methods. What is left
    out is noted."""
    flats = _settings(runs)
    problem_of = {id(run): _problem_settings(flats[id(run)]) for run in runs}
    cells = _names_of_problems(runs, problem_of)
    methods = _names_of_methods(runs, flats, problem_of)
    problems = sorted(
        {cells[id(run)] for run in runs}, key=lambda cell: (cell[0], _natural(cell[1]), _natural(cell[2]))
    )
    names = sorted({methods[id(run)] for run in runs}, key=_place)
    found: dict[tuple[int, int], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault((problems.index(cells[id(run)]), names.index(methods[id(run)])), []).append(run)
    groups = {place: _once_a_seed(members, notes) for place, members in sorted(found.items())}
    return Grouped(
        problems=[_problem(cell, [run for run in runs if cells[id(run)] == cell]) for cell in problems],
        methods=[name for _, name in names],
        groups=[Group(problem=p, method=m, runs=members) for (p, m), members in groups.items()],
    )


def _once_a_seed(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """A seed counts once, also where what sets two of its runs apart has no name."""
    kept: dict[int, Run] = {}
    for run in runs:
        other = kept.setdefault(run.seed, run)
        if other is not run:
            better = (run.done, not run.final) > (other.done, not other.final)
            kept[run.seed], left = (run, other) if better else (other, run)
            notes.append(
                f"{left.folder} is left out: {kept[run.seed].folder} is of the same seed, "
                "and no setting that has a name here tells them apart"
            )
    return list(kept.values())


def _settings(runs: Sequence[Run]) -> dict[int, Settings]:
    """Of each run. The lists of custom partitions, which may be drawn anew for every seed, are among them where two
    runs of one seed have others on what else is the same problem."""
    flats = {id(run): run.settings for run in runs}
    problems: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.partition.scheme == "custom":
            problems.setdefault(told(_problem_settings(flats[id(run)])), []).append(run)
    for members in problems.values():
        if any(run.seed == other.seed and not run.same_lists(other) for run, other in combinations(members, 2)):
            for run in members:
                lists = {"partition.lists": run.lists} if run.lists else {"partition.file": run.config.partition.file}
                flats[id(run)] |= lists
    return dict(flats)


def _problem_settings(flat: Settings) -> Settings:
    """The settings that make the problem."""
    return {key: value for key, value in flat.items() if key.startswith(("partition.", "model.")) or key in _OF_PROBLEM}


def _names_of_problems(runs: Sequence[Run], settings: Mapping[int, Settings]) -> dict[int, tuple[str, str, str]]:
    """(data set, skew, what else is unusual). A setting is called the same all over the page: said is what varies
    there and is not the default, so that the usual setting has no name."""
    usual = Config().flat()
    keys = {key for own in settings.values() for key in own}
    datasets = _datasets(runs)
    cells = {id(run): (datasets[id(run)], _skew(run.config)) for run in runs}
    values: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        for key in keys:
            place = (key, *_where_it_varies(key, cells[id(run)]))
            values.setdefault(place, set()).add(told(settings[id(run)].get(key)))

    def said(run: Run) -> Iterator[str]:
        named = {"data.name", "partition.beta", "partition.classes_per_client"}
        if "dirichlet" not in run.config.partition.scheme:
            named.add("partition.scheme")
        for key, value in settings[id(run)].items():
            varies = len(values[(key, *_where_it_varies(key, cells[id(run)]))]) > 1
            if varies and key not in named and value != usual.get(key):
                yield _said(key, value)

    return {id(run): (*cells[id(run)], ", ".join(said(run))) for run in runs}


def _where_it_varies(key: str, cell: tuple[str, str]) -> tuple[str, ...]:
    """The part of the page in which a setting must vary to be said: every data set has its own pictures and model, and
    every custom partition its own lists."""
    if key in ("partition.lists", "partition.file"):
        return cell
    return cell[:1] if key.startswith(("data.", "model.")) else ()


def _names_of_methods(
    runs: Sequence[Run], flats: Mapping[int, Settings], problems: Mapping[int, Settings]
) -> dict[int, tuple[str, str]]:
    """(registered name, shown name). Shown are settings that vary on some problem and are not the method's default."""
    keys = {key for flat in flats.values() for key in flat} - {"run.seed"}
    values: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        problem = told(problems[id(run)])
        for key in keys:
            place = (str(run.config.method.name), problem, key)
            values.setdefault(place, set()).add(told(flats[id(run)].get(key)))
    varied = {(name, key) for (name, _, key), found in values.items() if len(found) > 1}
    titles = _titles(name for name, _, _ in values)
    names = {}
    for run in runs:
        name = str(run.config.method.name)
        usual = _defaults(name)
        said = [
            _said(key, value)
            for key, value in flats[id(run)].items()
            if (name, key) in varied and (key not in usual or usual[key] != value)
        ]
        names[id(run)] = (name, f"{titles[name]} ({', '.join(said)})" if said else titles[name])
    return names


def _titles(names: Iterable[str]) -> dict[str, str]:
    """What methods are called: one's own by its class alone, unless something else is called so."""
    titles = {name: METHODS[name].title if name in METHODS else name.rpartition(":")[2] for name in names}
    registered = {name: kind.title for name, kind in METHODS.items()}
    number = Counter(title.casefold() for title in (registered | titles).values())
    return {name: title if title and number[title.casefold()] == 1 else name for name, title in titles.items()}


def _defaults(method: str) -> Settings:
    base = {key: value for key, value in Config().flat().items() if not key.startswith("method.") and value is not None}
    if method not in METHODS:
        return base
    kind = METHODS[method]
    options = {f"method.{key}": spec.default for key, spec in kind.__dataclass_fields__.items()}
    return base | options | dict(kind.defaults("", ""))


def _datasets(runs: Sequence[Run]) -> dict[int, str]:
    """What the data of each run are called: the same data the same, wherever they lie."""
    names: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.config.data.name not in TITLES):
        names.setdefault(_data(run), run.config.data.name)
    unknown = Counter(_dataset(name) for data, name in names.items() if data == name)
    shown = {data: name if unknown[_dataset(name)] > 1 else _dataset(name) for data, name in names.items()}
    return {id(run): shown[_data(run)] for run in runs}


def _data(run: Run) -> str:
    """What the data are known by."""
    return run.config.data.fingerprint or run.config.data.name


def _dataset(name: str) -> str:
    return TITLES.get(name) or PurePath(name).name or name


def _skew(config: Config) -> str:
    partition = config.partition
    if "dirichlet" in partition.scheme:
        return f"beta {_number(partition.beta)}"
    return f"{partition.classes_per_client} classes a client" if partition.scheme == "shards" else partition.scheme


_NAMES = {"data.fingerprint": "data", "method.fingerprint": "source", "model.name": "model"}


def _said(key: str, value: Any) -> str:
    """'epochs 10' for train.epochs = 10, 'mixup off'."""
    name = _NAMES.get(key, key.split(".", 1)[1].replace("_", " "))
    if key.endswith(".fingerprint"):
        return f"{name} {str(value)[:6]}"
    if isinstance(value, bool):
        return f"{name} {'on' if value else 'off'}"
    return f"{name} {_number(value)}" if isinstance(value, float) else f"{name} {'open' if value is None else value}"


def _number(value: float) -> str:
    """As short as it can be without being another number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _natural(text: str) -> tuple[Any, ...]:
    """So that beta 0.05 comes before beta 0.1 and epochs 5 before epochs 10."""
    return tuple((0, float(word), "") if _is_number(word) else (1, 0.0, word) for word in text.replace(",", "").split())


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).replace("e-", "", 1).isdigit()


def _place(name: tuple[str, str]) -> tuple[Any, ...]:
    known = ["fedacd", *METHODS]
    key, shown = name
    return (known.index(key) if key in known else len(known), "(" in shown, shown)


def _problem(cell: tuple[str, str, str], runs: Sequence[Run]) -> Problem:
    names = next((run.class_names for run in runs if run.class_names), None)
    lengths = [
        len(next((line["per_class"] for line in reversed(run.rounds) if line.get("per_class")), ())) for run in runs
    ]
    lengths += [run.counts.shape[1] for run in runs if run.counts is not None]
    classes = max(lengths, default=len(names or ()))
    dataset, skew, rest = cell
    same = names if names and len(names) == classes else None
    return Problem(dataset=dataset, skew=skew, rest=rest, num_classes=classes, class_names=same)
