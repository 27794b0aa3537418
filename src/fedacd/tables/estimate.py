"""How long the missing runs of a table will take, from what recorded runs took."""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import torch

from fedacd.errors import RecordError
from fedacd.files import read_json
from fedacd.records import ENV
from fedacd.tables.found import Found
from fedacd.tables.match import Matched
from fedacd.tables.wanted import Want


def device_kind(device: str) -> str:
    """cpu or cuda."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device.partition(":")[0]


@dataclass(frozen=True)
class Session:
    """A stretch of work on a run."""

    start: float
    end: float
    rounds: int
    device: str


def sessions(run: Found) -> list[Session]:
    """Those of which start and end are known. A summary has one, as long as all of its rounds, up to the last end."""
    found = []
    with contextlib.suppress(RecordError, KeyError, TypeError, ValueError, AttributeError):  # it only informs
        if run.summary:
            made = run.summary["made"]
            end, seconds, device = datetime.fromisoformat(made["ended"]).timestamp(), made["seconds"], made["device"]
            is_known = 0 < seconds < math.inf and isinstance(device, str)
            return [Session(end - seconds, end, run.done, device)] if is_known else []
        listed = read_json(run.path / ENV)["sessions"]
        ends = [*(session["from_round"] for session in listed[1:]), run.done]
        for session, until in zip(listed, ends, strict=True):
            if session["ended"] and until > session["from_round"]:
                start, end = (datetime.fromisoformat(session[key]).timestamp() for key in ("started", "ended"))
                found.append(Session(start, end, until - session["from_round"], str(session["device"])))
    return found


def shared_seconds(work: Sequence[Session]) -> list[float]:
    """The seconds of each stretch of work, those in which several ran on a device divided among them."""
    shares = [0.0] * len(work)
    for device in {session.device for session in work}:
        own = [number for number, session in enumerate(work) if session.device == device]
        moments = sorted({moment for number in own for moment in (work[number].start, work[number].end)})
        for start, end in itertools.pairwise(moments):
            busy = [number for number in own if work[number].start <= start and end <= work[number].end]
            for number in busy:
                shares[number] += (end - start) / len(busy)
    return shares


@dataclass(frozen=True, kw_only=True)
class Estimate:
    seconds: float
    unknown: int
    """Runs of which nothing alike has been recorded."""
    device: str | None
    """Where the like was recorded."""


def estimate(runs: Sequence[Want], matched: Matched, found: Sequence[Found], device: str | None) -> Estimate:
    """Time for what is missing, from the sessions of recorded runs on this kind of device at the same precision.

    A second in which several runs shared a device counts for each of them in part. Work grows with participation and
    epochs; a run of the same method tells more than one of another method. With None, any device will do.
    """
    rates: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    work: list[tuple[Found, Session]] = []
    once = {run.key: run for run in sorted(found, key=lambda run: run.summary is None)}  # a folder before its summary
    for run in once.values():
        if device in (None, str(run.settings.get("run.device", "")).partition(":")[0]):
            work += [(run, session) for session in sessions(run)]
    for (run, session), seconds in zip(work, shared_seconds([session for _, session in work]), strict=True):
        settings = run.settings
        each = seconds / session.rounds / _work(settings)
        for method in (str(settings["method.name"]), ""):
            rates.setdefault((_kind(settings), method), []).append((each, session.rounds, session.device))
    total, unknown, devices = 0.0, 0, set[str]()
    for want in matched.missing(runs):
        kind = _kind(want.identity)
        known = rates.get((kind, str(want.identity["method.name"]))) or rates.get((kind, ""))
        if not known:
            unknown += 1
            continue
        devices |= {name for _, _, name in known}
        left = want.rounds - (matched.partly[want.key].done if want.key in matched.partly else 0)
        each = sum(seconds * rounds for seconds, rounds, _ in known) / sum(rounds for _, rounds, _ in known)
        total += each * left * _work(want.identity)
    return Estimate(seconds=total, unknown=unknown, device=", ".join(sorted(devices)) or None)


def _kind(settings: Mapping[str, object]) -> str:
    return f"{settings['data.name']} {settings.get('model.name')} {settings['run.precision']}"


def _work(settings: Mapping[str, object]) -> float:
    return float(str(settings["train.participation"])) * float(str(settings["train.epochs"]))
