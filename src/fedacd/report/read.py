"""Find run folders and summaries and read them, whatever state they are in."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedacd.config import Config
from fedacd.errors import FedacdError, RecordError
from fedacd.files import read_about, read_json, read_safetensors
from fedacd.methods import Tensors
from fedacd.metrics import METRICS
from fedacd.records import CONFIG, ENV, MATRICES, MODEL, ROUNDS, read_config
from fedacd.report.find import find
from fedacd.tables.found import SUMMARY, Found, Numbers, lists_in

_NUMBERS = (*METRICS, "train_loss", "seconds", "bytes_up", "bytes_down")
_DIGITS = 5
"""Of a normalisation: records of one data set may differ in the last ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run folder as far as it could be read, or what a summary says of it."""

    folder: Path
    """Of a summary the file."""
    config: Config
    done: int
    """How many rounds were run."""
    rounds: list[dict[str, Any]]
    """The whole lines of rounds.jsonl, or the points of a summary's curve; a number that is not finite is None."""
    final: Numbers = field(default_factory=dict)
    """What a summary says that all rounds come to; empty for a folder."""
    session: dict[str, Any]
    """The last session of env.json, empty where there is none; of a summary how it was made."""
    class_names: list[str] | None
    counts: NDArray[np.int64] | None
    """[clients, C] samples of each class; None: not recorded."""
    matrices: Tensors = field(repr=False)
    """`own/<client>` and `test/<client>`; empty: not recorded."""
    lists: str | None = None
    """A digest of who holds what under a custom partition; None: another scheme, or not recorded."""

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def name(self) -> str:
        path = self.folder.resolve()
        return path.stem if self.final else path.name

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the numbers, less what the partition scheme does not look at and how often was measured. Where
        the data are and whose lists a custom partition has is not among them: `same_lists` knows that."""
        flat, scheme = self.config.identity(), self.config.partition.scheme
        for key in ("data.mean", "data.std"):
            flat[key] = flat[key] and [float(f"{value:.{_DIGITS}g}") for value in flat[key]]
        unused = {"run.eval_every", "partition.file"}
        if self.config.data.fingerprint:
            unused.add("data.name")
        if "dirichlet" not in scheme:
            unused |= {"partition.beta", "partition.min_size"}
        if scheme != "shards":
            unused.add("partition.classes_per_client")
        return {key: value for key, value in flat.items() if key not in unused}

    def same_lists(self, other: "Run") -> bool:
        """Whether the clients of two runs may hold the same samples, if their settings are the same."""
        if self.lists and other.lists:
            return self.lists == other.lists
        return self.config.partition.file == other.config.partition.file

    @property
    def unfinished(self) -> str | None:
        """What to write beside it; None for a finished run."""
        total = self.config.train.rounds
        return None if self.done >= total else f"unfinished: {self.done} of {total} rounds"


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Every run in or below these folders, every summary that is named or directly in one of them, and what was left
    out and why. No run at all is an error."""
    notes: list[str] = []
    runs: list[Run] = []
    for place, found in find(paths, notes).items():
        try:
            runs.append(_of_summary(found) if found else _read(place, notes))
        except FedacdError as error:
            notes.append(f"{place} is left out: {error}")
    if not runs:
        why = f" ({notes[0]})" if notes else ""
        raise RecordError(
            f"no run to report in {', '.join(map(str, paths)) or 'nothing'}{why}. "
            f"A run folder has a {CONFIG} and a {ROUNDS}; a summary is a .json file that holds a '{SUMMARY}'."
        )
    runs = _without_twins(runs, notes)
    notes += _about_summaries(runs)
    return runs, notes


def _about_summaries(runs: Sequence[Run]) -> list[str]:
    number = sum(bool(run.final) for run in runs)
    if not number:
        return []
    begins = f"{number} of {len(runs)} runs {'is a summary' if number == 1 else 'are summaries'}"
    return [
        f"{begins}: single rounds, every tenth at most, so that an accuracy seems to be reached late; "
        "the mean of the last 10 at the end alone; nothing of clients, weights, bytes and losses, "
        "and in older ones nothing of classes"
    ]


def _read(folder: Path, notes: list[str]) -> Run:
    tensors, names = _matrices(folder, notes), None
    counts = tensors.pop("counts", None)
    if (folder / MODEL).exists():
        try:
            names = read_about(folder / MODEL, "model").get("class_names")
        except RecordError:
            notes.append(f"{folder / MODEL} cannot be read: the classes have no names")
    rounds = _rounds(folder / ROUNDS, notes)
    config = read_config(folder)
    return Run(
        folder=folder,
        config=config,
        done=int(rounds[-1]["round"]) if rounds else 0,
        rounds=rounds,
        session=_session(folder / ENV),
        class_names=[str(name) for name in names] if names else None,
        counts=None if counts is None else counts.numpy(),
        matrices=tensors,
        lists=_lists(folder, notes) if config.partition.scheme == "custom" else None,
    )


def _lists(folder: Path, notes: list[str]) -> str | None:
    try:
        return lists_in(folder)
    except RecordError as error:
        notes.append(f"{error}")
        return None


def _of_summary(found: Found) -> Run:
    assert found.summary is not None
    try:
        rounds = _points(found.summary["curve"])
        classes = list[float | None](found.summary.get("classes", []))
        if rounds and classes:
            rounds[-1]["per_class"] = [None if value is None else _finite(value + 0.0) for value in classes]
        made = {key: _finite(value) for key, value in found.summary.get("made", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"{found.path} is a damaged summary ({type(error).__name__}: {error}).") from None
    return Run(
        folder=found.path,
        config=Config.build(found.settings),
        done=found.done,
        rounds=rounds,
        final=found.numbers(),
        session=made,
        class_names=None,
        counts=None,
        matrices={},
        lists=str(found.summary["lists"]) if found.summary.get("lists") else None,
    )


def _points(curve: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """A line for every point of a curve."""
    known = [key for key in METRICS if key in curve]
    points = zip(curve["round"], *(curve[key] for key in known), strict=True)
    return [
        {"round": int(number)} | {key: _finite(float(value)) for key, value in zip(known, values, strict=True)}
        for number, *values in points
    ]


def _rounds(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}.") from None
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() == b"":
            continue
        record = _record(line)
        if record and number < len(lines):
            records[record["round"]] = {key: _finite(value) for key, value in record.items()}
        else:
            notes.append(f"line {number} of {path} is cut short or no record: dropped")
    return [records[number] for number in sorted(records)]


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None where it is cut short, or something in it is no number that should be one."""
    try:
        record: dict[str, Any] = json.loads(line)
        numbers = [record.get(key) for key in _NUMBERS]
        numbers += [value for key in ("per_class", "participants", "weights") for value in record.get(key) or ()]
        is_whole = isinstance(record["round"], int) and all(isinstance(v, int | float | None) for v in numbers)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if is_whole else None


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _session(path: Path) -> dict[str, Any]:
    try:
        session: dict[str, Any] = dict(read_json(path)["sessions"][-1])
    except (RecordError, KeyError, TypeError, ValueError, IndexError):  # it only informs
        return {}
    return session


def _matrices(folder: Path, notes: list[str]) -> Tensors:
    path = folder / MATRICES
    if not path.exists():
        return {}
    try:
        return read_safetensors(path, "matrices")[0]
    except RecordError as error:
        notes.append(f"{error}")
        return {}


def told(value: Any) -> str:
    """A text that equal values have in common: 1 and 1.0 are."""
    if isinstance(value, Mapping):
        return repr(sorted((key, told(item)) for key, item in value.items()))
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _without_twins(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Every run once. Of whose lists are not known is the one that else equals it, best in its numbers too."""
    kept: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.partition.scheme == "custom" and not run.lists):
        others = kept.setdefault(told(run.settings), [])
        twins = [other for other in others if run.same_lists(other)]
        if twins:
            twin = min(twins, key=lambda other: _differ(run, other))
            others[others.index(twin)] = further(run, twin, notes)
        else:
            others.append(run)
    return [run for others in kept.values() for run in others]


def further(run: Run, other: Run, notes: list[str]) -> Run:
    """Of two records of a run the one that went further, and a folder before a summary, which knows less."""
    better = (run.done, not run.final) > (other.done, not other.final)
    kept, left = (run, other) if better else (other, run)
    same = f"{left.folder} is left out: {kept.folder} holds the same run"
    if _differ(kept, left):
        notes.append(f"{same} with other numbers")
        return kept
    if not left.final or kept.final:  # a summary beside its own run is as it should be
        notes.append(same)
    return replace(kept, lists=kept.lists or left.lists)


def _differ(*runs: Run) -> bool:
    """Whether an accuracy that both have differs by more than a summary's curve is rounded."""
    one, other = map(_accuracies, runs)
    return any(abs(one[number] - other[number]) > 1e-4 for number in one.keys() & other.keys())


def _accuracies(run: Run) -> dict[int, float]:
    """By round; a summary knows that of its last one too."""
    known = {line["round"]: line["accuracy"] for line in run.rounds if line.get("accuracy") is not None}
    return known | ({run.done: run.final["accuracy"]["last"]} if "accuracy" in run.final else {})
