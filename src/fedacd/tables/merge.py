"""Join the run folders of several machines. A record is kept or refused as a whole, never mixed.

A run that is in both places must have the same config, the same partition and the same numbers in every round that both
have, time apart; then the finished record stays, or else that with the later checkpoint, or else the longer one.
"""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedacd.errors import FedacdError, RecordError
from fedacd.files import sync, writing
from fedacd.records import (
    CONFIG,
    LOCK,
    MODEL,
    PARTITION,
    ROUNDS,
    finished_rounds,
    read_config,
    read_partition,
    read_rounds,
)
from fedacd.tables.found import differences

PARTIAL, OLD = ".merging-", ".replaced-"
TIMES = frozenset({"seconds"})


@dataclass(kw_only=True)
class Merged:
    """What a merge did, by the names of runs."""

    new: list[str] = field(default_factory=list)
    longer: list[str] = field(default_factory=list)
    """Replaced by a longer record."""
    same: list[str] = field(default_factory=list)
    """Nothing to do: the record here is as long or longer."""
    notes: list[str] = field(default_factory=list)


def merge(into: Path, sources: Sequence[Path]) -> Merged:
    """Bring the runs of the sources into a folder. Every conflict is found before anything is written.

    A run whose config cannot be read, here or there, is left out and named.
    """
    merged = Merged()
    if into.exists() and (not into.is_dir() or (into / CONFIG).exists()):
        raise RecordError(f"{into} must be a folder in which runs have theirs, or a new one.")
    _mend(into)
    chosen: dict[str, Path] = {}
    for source in sources:
        for run in runs_in(source, merged.notes):
            other = chosen.get(run.name, into / run.name)
            if not all(_has_config(place, merged.notes) for place in (run, other) if place.exists()):
                continue
            if other.exists():
                _require_same_run(other, run)
                if _length(run) <= _length(other):
                    merged.same.append(run.name)
                    continue
            else:
                _read(run)
            chosen[run.name] = run
    if not chosen and not merged.same:
        raise RecordError(" ".join(["there is no run to merge.", *merged.notes]))
    for name, run in chosen.items():
        (merged.longer if (into / name).exists() else merged.new).append(name)
        _bring(run, into / name)
    return merged


def runs_in(source: Path, notes: list[str]) -> list[Path]:
    """The run folders of a source, or the run that it is."""
    try:
        if (source / CONFIG).exists():
            return [source.resolve()]
        entries = sorted(entry for entry in source.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise RecordError(f"cannot read {source}: {error.strerror}.") from None
    runs, foreign, unreadable = list[Path](), list[str](), list[str]()
    for entry in entries:
        try:
            if (entry / CONFIG).exists():
                runs.append(entry)
            elif entry.is_dir():
                foreign.append(f"{entry} is passed over: it holds no fedacd run.")
        except OSError as error:
            unreadable.append(f"{entry} is left out: {error.strerror}.")
    if not runs:
        raise RecordError(" ".join([f"{source} holds no fedacd run: no folder in it has a {CONFIG}.", *unreadable]))
    notes += foreign + unreadable
    for run in runs:
        content = b""
        with contextlib.suppress(OSError):  # where it cannot be read, `read_rounds` says so
            content = (run / ROUNDS).read_bytes()
        if content and not content.endswith(b"\n"):
            notes.append(f"{run / ROUNDS}: the last line is cut short and not counted.")
    return runs


def _has_config(run: Path, notes: list[str]) -> bool:
    try:
        read_config(run)
    except FedacdError as error:
        notes.append(f"{run} is left out: {error}")
        return False
    return True


def _read(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rounds = read_rounds(run)
    for number, line in enumerate(rounds, 1):
        if not isinstance(line, dict):
            raise RecordError(f"{run / ROUNDS} is damaged: line {number} is no object.")
    return read_config(run).identity(), rounds


def _length(run: Path) -> tuple[bool, int, int, bool]:
    """Finished or not, rounds of the checkpoint, lines, with a model or not: the order in which a record is better."""
    lines, saved = len(read_rounds(run)), 0
    with contextlib.suppress(RecordError):  # a damaged checkpoint is as good as none
        saved = finished_rounds(run) or 0
    saved = saved if saved <= lines else 0  # a run cannot go on from it
    return lines >= read_config(run).train.rounds, saved, lines, (run / MODEL).exists()


def _require_same_run(there: Path, here: Path) -> None:
    (config, rounds), (other_config, other_rounds) = _read(there), _read(here)
    conflict = f"{here} conflicts with {there}"
    for difference in differences(config, other_config, sorted({*config, *other_config})):
        raise RecordError(f"{conflict}: {difference}. Keep one of them.")
    if (there / PARTITION).exists() and (here / PARTITION).exists():
        one, other = read_partition(there), read_partition(here)
        if len(one) != len(other) or not all(map(np.array_equal, one, other)):
            raise RecordError(f"{conflict}: its clients have other samples. Keep one of them.")
    for line, other_line in zip(rounds, other_rounds, strict=False):
        keys = [key for key in line | other_line if key not in TIMES]
        for difference in differences(line, other_line, keys):
            raise RecordError(f"{conflict}: in round {line.get('round')} {difference}. Keep one of them.")


def _bring(run: Path, place: Path) -> None:
    """Copy a run beside its place, then put it there by a rename."""
    partial, old = place.with_name(PARTIAL + place.name), place.with_name(OLD + place.name)
    with writing(place), _still(run), _still(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(run, partial, ignore=shutil.ignore_patterns(LOCK, "*.partial"))
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        if place.exists():
            place.rename(old)
        partial.rename(place)
        sync(place.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _still(run: Path) -> Iterator[None]:
    """Make sure that nobody writes to a run meanwhile."""
    if not (run / LOCK).exists():
        yield
        return
    with (run / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"{run} is in use by another process: wait for it, then merge again.") from None
        yield


def _mend(into: Path) -> None:
    """After a merge that was killed: a run that was about to be replaced goes back to its place."""
    for old in into.glob(f"{OLD}*") if into.is_dir() else []:
        place = into / old.name.removeprefix(OLD)
        with writing(place):
            if place.exists():
                shutil.rmtree(old)
            else:
                old.rename(place)
