"""Find run folders and read them, whatever state they are in."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedacd.config import Config
from fedacd.errors import FedacdError, RecordError
from fedacd.files import read_about, read_json, read_safetensors
from fedacd.methods import Tensors
from fedacd.records import CONFIG, ENV, MATRICES, MODEL, ROUNDS, read_config

DEPTH = 4
"""How deep below a given folder run folders are looked for."""

_NO_MATTER = frozenset({"run.eval_every", "data.mean", "data.std"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run folder as far as it could be read."""

    folder: Path
    config: Config
    rounds: list[dict[str, Any]]
    """The whole lines of rounds.jsonl; a number that is not finite is None."""
    session: dict[str, Any]
    """The last session of env.json, empty where there is none."""
    class_names: list[str] | None
    counts: NDArray[np.int64] | None
    """[clients, C] samples of each class; None: not recorded."""
    matrices: Tensors = field(repr=False)
    """`own/<client>` and `test/<client>`; empty: not recorded."""

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def done(self) -> int:
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def total(self) -> int:
        return self.config.train.rounds

    @property
    def unfinished(self) -> str | None:
        """What to write beside it; None for a finished run."""
        return None if self.done >= self.total else f"unfinished: {self.done} of {self.total} rounds"


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Every run in or below these folders, and what was left out and why. No run at all is an error."""
    notes: list[str] = []
    runs: list[Run] = []
    for folder in _find(paths, notes):
        try:
            runs.append(_read(folder, notes))
        except FedacdError as error:
            notes.append(f"{folder} is left out: {error}")
    if not runs:
        why = f" ({notes[0]})" if notes else ""
        raise RecordError(
            f"no run to report in {', '.join(map(str, paths)) or 'nothing'}{why}. "
            f"A run folder has a {CONFIG} and a {ROUNDS}."
        )
    return _without_twins(runs, notes), notes


def _find(paths: Sequence[Path], notes: list[str]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist: name run folders, or folders that hold run folders.")
        if not path.is_dir():
            notes.append(f"{path} is left out: it is a file, not a run folder")
            continue
        below = list(_below(path, notes))
        if not below:
            notes.append(f"{path} is left out: it holds no fedacd run")
        found |= {folder.resolve(): folder for folder in below if folder.resolve() not in found}
    return list(found.values())


def _below(path: Path, notes: list[str]) -> list[Path]:
    folders: list[Path] = []

    def refused(error: OSError) -> None:
        notes.append(f"{error.filename} is left out: {error.strerror}")

    for place, names, files in os.walk(path, onerror=refused):
        folder = Path(place)
        is_run = CONFIG in files or CONFIG in names
        if is_run:
            folders.append(folder)
        deep = len(folder.relative_to(path).parts) >= DEPTH
        names[:] = [] if is_run or deep else sorted(name for name in names if not name.startswith("."))
    return folders


def _read(folder: Path, notes: list[str]) -> Run:
    tensors, names = _matrices(folder, notes), None
    counts = tensors.pop("counts", None)
    if (folder / MODEL).exists():
        try:
            names = read_about(folder / MODEL, "model").get("class_names")
        except RecordError:
            notes.append(f"{folder / MODEL} cannot be read: the classes have no names")
    return Run(
        folder=folder,
        config=read_config(folder),
        rounds=_rounds(folder / ROUNDS, notes),
        session=_session(folder / ENV),
        class_names=[str(name) for name in names] if names else None,
        counts=None if counts is None else counts.numpy(),
        matrices=tensors,
    )


def _rounds(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}.") from None
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() == b"":
            continue
        try:
            record = json.loads(line)
            whole = isinstance(record, dict) and isinstance(record.get("round"), int) and number < len(lines)
        except ValueError:
            whole = False
        if whole:
            records[record["round"]] = {key: _finite(value) for key, value in record.items()}
        else:
            notes.append(f"line {number} of {path} is cut short or no record: dropped")
    return [records[number] for number in sorted(records)]


def _finite(value: Any) -> Any:
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


def _without_twins(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """One run of each config: the one that went furthest."""
    best: dict[str, Run] = {}
    for run in runs:
        key = repr(sorted((name, value) for name, value in run.config.identity().items() if name not in _NO_MATTER))
        other = best.setdefault(key, run)
        if other is run:
            continue
        kept, left = (run, other) if run.done > other.done else (other, run)
        best[key] = kept
        notes.append(f"{left.folder} is left out: {kept.folder} holds the same run")
    return list(best.values())
