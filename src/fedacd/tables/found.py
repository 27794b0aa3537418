"""Which runs there are: run folders and summaries, read only as far as a question needs."""

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedacd.errors import ConfigError, RecordError
from fedacd.files import read_json
from fedacd.metrics import METRICS, NEWER
from fedacd.records import CONFIG, PARTITION, ROUNDS, STATE, read_partition, read_rounds, saved_rounds, summary
from fedacd.tables.declare import METRICS as SHOWN
from fedacd.tables.wanted import key_of, plain
from fedacd.toml import read_toml

SUMMARY = "fedacd run summary"
TAIL = 1 << 16

Numbers = Mapping[str, Mapping[str, float]]
"""Of every metric: `late`, the mean over the last ten rounds; the `last` round; the `best` round."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run of which there is a record."""

    path: Path
    settings: Mapping[str, Any]
    """All of them, as `section.key`."""
    done: int
    """Rounds with a whole record."""
    cut: bool = False
    """Whether the last line of the record is cut short."""
    summary: Mapping[str, Any] | None = None
    """What stands for the run where there is no folder of it."""

    @functools.cached_property
    def key(self) -> str:
        return key_of(self.settings)

    @property
    def name(self) -> str:
        return self.path.stem if self.summary else self.path.name

    @property
    def finished(self) -> bool:
        return self.done >= int(self.settings["train.rounds"])

    def numbers(self) -> Numbers:
        if self.summary:
            numbers: Numbers = self.summary["final"]
            return numbers
        with judging(self.path):
            return judge(read_rounds(self.path), self.path)


@contextlib.contextmanager
def judging(run: Path) -> Iterator[None]:
    """Turn lines that lack something into a message."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{run / ROUNDS} is damaged ({type(error).__name__}: {error}).") from None


def judge(rounds: Sequence[Mapping[str, Any]], run: Path) -> Numbers:
    """What a run's record comes to."""
    late = summary(rounds)
    measured = [line for line in rounds if line.get("accuracy") is not None]
    if not measured:
        raise RecordError(f"{run / ROUNDS}: no round of the run has been measured.")
    found = {}
    for key in METRICS:
        if key in NEWER and not all(key in line for line in measured):
            continue
        values = [line[key] for line in measured]
        if None in values:
            raise RecordError(f"{run / ROUNDS}: {key} was not measured, as in a deployment.")
        best = min(values) if SHOWN[key].lower_is_better else max(values)
        found[key] = {"late": late[key], "last": values[-1], "best": best}
    return found


def scan(folder: Path, warn: list[str]) -> list[Found]:
    """The runs and summaries in a folder, or the run that it is; what is neither is passed over."""
    try:
        entries = [folder] if (folder / CONFIG).exists() else sorted(folder.iterdir())
    except OSError as error:
        raise RecordError(f"cannot read {folder}: {error.strerror}.") from None
    return read_entries(entries, warn)


def read_entries(entries: Iterable[Path], warn: list[str]) -> list[Found]:
    """The runs and summaries among these."""
    found = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            if entry.suffix == ".json" and entry.is_file():
                found += read_summary(entry)
            elif (entry / CONFIG).exists():
                found.append(read_folder(entry))
        except (RecordError, ConfigError) as error:
            warn.append(f"{entry} is left out: {error}")
        except OSError as error:
            warn.append(f"{entry} is left out: {error.strerror}.")
    warn += [_cut_short(run) for run in found if run.cut and not run.finished]
    return found


def _cut_short(run: Found) -> str:
    begins = f"{run.path}: the last line of {ROUNDS} is cut short and not counted"
    try:
        saved = saved_rounds(run.path) or 0
    except RecordError as error:
        return f"{begins}, and {error}"
    if saved == run.done + 1:
        return f"{begins}, and {STATE} is of that round: the run has to begin afresh."
    if saved > run.done:
        return f"{begins}, and {STATE} is of round {saved}: restore the lines, or remove the folder to start afresh."
    return f"{begins}: the run has to go on from round {saved + 1}."


def read_folder(path: Path) -> Found:
    settings = {**plain(), **read_toml(path / CONFIG)}
    _require_names(path / CONFIG, settings)
    done, cut = _progress(path / ROUNDS)
    return Found(path=path, settings=settings, done=done, cut=cut)


def read_summary(path: Path) -> list[Found]:
    """The run of a summary; none for a file that is something else."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("holds") != SUMMARY:
        return []
    try:
        settings = {**plain(), **content["config"]}
        _require_names(path, settings)
        for key in METRICS:
            if key in NEWER and key not in content["final"]:
                continue
            for which in ("late", "last", "best"):
                if not math.isfinite(content["final"][key][which]):
                    raise ValueError(f"{key} is not finite")
        done = int(content["rounds"])
        if done < 1:
            raise ValueError("no round")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{path} is a damaged summary ({type(error).__name__}: {error}).") from None
    return [Found(path=path, settings=settings, done=done, summary=content)]


def lists_in(run: Path) -> str | None:
    """A digest of who holds what in a run folder; None where it is not recorded."""
    if not (run / PARTITION).exists():
        return None
    lists = [members.tolist() for members in read_partition(run)]
    return hashlib.blake2b(json.dumps(lists).encode(), digest_size=4).hexdigest()


def _require_names(path: Path, settings: Mapping[str, Any]) -> None:
    for key in ("data.name", "method.name", "run.seed", "train.rounds"):
        if key not in settings:
            raise RecordError(f"{path} does not say {key}.")
    for key, kinds in (("train.rounds", [int]), ("train.epochs", [int]), ("train.participation", [int, float])):
        if type(settings[key]) not in kinds or not settings[key] > 0:
            raise RecordError(f"{path}: {key} = {settings[key]!r}: must be a number above 0.")


def _progress(path: Path) -> tuple[int, bool]:
    """The last round with a whole line, and whether half a line follows; from the end of the file alone."""
    if not path.exists():
        return 0, False
    size = path.stat().st_size
    with path.open("rb") as file:
        for start in (max(0, size - TAIL), 0):
            file.seek(start)
            lines = file.read().split(b"\n")
            whole = lines[:-1] if start == 0 else lines[1:-1]
            if whole or start == 0:
                break
    cut = bool(lines[-1])
    try:
        return (int(json.loads(whole[-1])["round"]) if whole else 0), cut
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"cannot read the last line of {path}.") from None


def differences(there: Mapping[str, Any], here: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """In words, the settings in which two runs differ."""
    for key in keys:
        if there.get(key) != here.get(key):
            yield f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
