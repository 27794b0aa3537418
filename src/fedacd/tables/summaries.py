"""One small file a run: enough to fill tables and draw curves without the run's folder.

holds    "fedacd run summary"
config   every setting as section.key
rounds   how many there are
final    of every metric the mean over the last ten rounds (late), the last and the best round
curve    every metric at every tenth round
lists    of a custom partition a digest of who holds what; not in older summaries
classes  test accuracy of every class, the mean over the last ten rounds; not of more than 200, nor in older summaries
made     device, versions, commit, first start, last end, seconds of all rounds
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedacd.errors import ConfigError, RecordError
from fedacd.files import read_json, write_atomically, writing
from fedacd.metrics import METRICS, class_means
from fedacd.records import ENV, read_config, read_rounds
from fedacd.tables.found import SUMMARY, judge, judging, lists_in
from fedacd.tables.merge import runs_in

MOST_BYTES = 5000
MOST_CLASSES = 200
EVERY = 10


def summarise(run: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    config, rounds = read_config(run), read_rounds(run)
    if len(rounds) < config.train.rounds:
        raise RecordError(f"{run} is not finished: {len(rounds)} of {config.train.rounds} rounds.")
    found = {
        "holds": SUMMARY,
        "name": run.name,
        "config": {key: value for key, value in config.flat().items() if value is not None and key != "run.out"},
        "rounds": len(rounds),
    }
    if config.partition.scheme == "custom":
        with contextlib.suppress(RecordError):  # it only tells partitions apart
            found |= {"lists": lists} if (lists := lists_in(run)) else {}
    with judging(run):
        found["final"] = judge(rounds, run)
        found["made"] = _made(run) | {"seconds": round(sum(line["seconds"] for line in rounds), 1)}
        if len(classes := _classes(rounds)) <= MOST_CLASSES:
            found["classes"] = classes
        every = EVERY
        while len(_bytes(found | {"curve": _curve(rounds, every)})) > MOST_BYTES and every < len(rounds):
            every *= 2
        return found | {"curve": _curve(rounds, every)}


def write_summaries(sources: Sequence[Path], into: Path) -> tuple[list[Path], list[str]]:
    """Write a summary of every finished run; the files, and notes on what was left out.

    A file of the same name with other numbers is refused: remove it to write it anew.
    """
    written, notes = [], list[str]()
    for run in [run for source in sources for run in runs_in(source, notes)]:
        try:
            content = summarise(run)
        except RecordError as error:
            notes.append(f"left out: {error}")
            continue
        except ConfigError as error:
            notes.append(f"left out: {run}: {error}")
            continue
        path = into / f"{run.name}.json"
        if path.exists() and not _is_same(path, content):
            notes.append(f"left out: {path} is a damaged summary: remove it to write it anew.")
            continue
        with writing(path):
            into.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _bytes(content))
        written.append(path)
    return written, notes


def _is_same(path: Path, here: Mapping[str, Any]) -> bool:
    """Whether there is a summary of this very run; no for a damaged one, and what is something else is refused."""
    try:
        there = read_json(path)
    except RecordError:
        return False
    if not isinstance(there, dict) or there.get("holds") != SUMMARY:
        raise RecordError(f"{path} is no summary of a run: choose another folder.")
    if "final" in there and there["final"] != here["final"]:
        raise RecordError(f"{path} is of a run with other numbers: remove it to write it anew.")
    return "final" in there


def _bytes(content: Mapping[str, Any]) -> bytes:
    """A line for every part, so that changes can be read."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _curve(rounds: Sequence[Mapping[str, Any]], every: int) -> dict[str, list[Any]]:
    shown = [line for line in rounds if line["round"] % every == 0 and line.get("accuracy") is not None]
    curve: dict[str, list[Any]] = {"round": [line["round"] for line in shown]}
    known = [key for key in METRICS if all(line.get(key) is not None for line in shown)]
    return curve | {key: [float(f"{line[key]:.4g}") for line in shown] for key in known}


def _classes(rounds: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """None for a class without test images."""
    late = [line["per_class"] for line in rounds[-10:] if line.get("per_class")]
    return [None if mean is None else float(f"{mean:.4g}") for mean in class_means(late)]


def _made(run: Path) -> dict[str, Any]:
    with contextlib.suppress(RecordError, KeyError, TypeError, IndexError):  # it only informs
        sessions = read_json(run / ENV)["sessions"]
        last = sessions[-1]
        about = {key: last[key] for key in ("fedacd", "commit", "python", "torch", "numpy", "device")}
        return about | {"started": sessions[0]["started"], "ended": last["ended"]}
    return {}
