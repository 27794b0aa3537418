"""The page: data as JSON, plotly.js once, and this package's own HTML, CSS and JavaScript, in one file.

plotly.js and the data are packed (deflate, base64), which makes the page less than half as long; the browser unpacks
them. What a run is called may hold anything: names are in the data only, and the scripts put them in as text. A content
security policy forbids every request.
"""

import base64
import html
import json
import re
import zlib
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from fedacd import __version__
from fedacd.report import compare, pictures, series
from fedacd.report.group import Group, Grouped
from fedacd.report.read import Run

SCRIPTS = ("core.js", "tables.js", "plots.js", "sections.js")


def payload(grouped: Grouped, notes: list[str]) -> dict[str, Any]:
    """All that the page shows."""
    rows = [compare.row(group) for group in grouped.groups]
    found = compare.pairs(grouped)
    ranked = compare.rankings(grouped, rows, found)
    groups = [
        {
            "problem": group.problem,
            "method": group.method,
            "seeds": [run.seed for run in group.runs],
            "counted": len(compare.counted(group)),
            "counted_seeds": [run.seed for run in compare.counted(group)],
            "unfinished": _unfinished(group),
            "row": numbers,
            "curves": series.curves(group) if any(run.rounds for run in group.runs) else None,
            "per_class": series.per_class(group),
            "classed": sum(any(line.get("per_class") for line in run.rounds) for run in compare.counted(group)),
            "coarse": any(series.coarse(run) for run in group.runs),
            "records": [series.records(run) for run in group.runs],
        }
        for group, numbers in zip(grouped.groups, rows, strict=True)
    ]
    return {
        "title": title(grouped),
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, fedacd {__version__}",
        "problems": [
            {"dataset": problem.dataset, "skew": problem.skew, "rest": problem.rest, "title": problem.title}
            | {"classes": problem.num_classes, "names": problem.class_names}
            for problem in grouped.problems
        ],
        "methods": grouped.methods,
        "groups": groups,
        "pairs": found,
        "rankings": ranked,
        "headlines": compare.headlines(grouped, ranked, found),
        "runs": [_run(run, group.problem, group.method) for group in grouped.groups for run in group.runs],
        "partitions": pictures.partitions(grouped, notes),
        "matrices": pictures.matrices(grouped, notes),
        "shares": pictures.shares(grouped, notes),
        "notes": notes,
    }


def _unfinished(group: Group) -> list[str]:
    """The marks of runs that have not reached their end."""
    counted, several = compare.counted(group), len(group.runs) > 1
    marks = []
    for run in group.runs:
        if run.unfinished:
            seed = f"seed {run.seed} " if several else ""
            marks.append(seed + run.unfinished + ("" if run in counted else ", not counted"))
    return marks


def _run(run: Run, problem: int, method: int) -> dict[str, Any]:
    config, session = run.config, run.session
    return {
        "problem": problem,
        "method": method,
        "seed": run.seed,
        "name": run.name,
        "summary": bool(run.final),
        "state": run.unfinished or f"{run.done} rounds",
        "device": str(session.get("device", config.run.device)),
        "precision": config.run.precision,
        "torch": str(session.get("torch", "")),
        "commit": str(session.get("commit") or "")[:10],
        "started": str(session.get("started", ""))[:10],
    }


def title(grouped: Grouped) -> str:
    """'FedACD and FedAvg on CIFAR-100'."""
    sets = list(dict.fromkeys(problem.dataset for problem in grouped.problems))
    names = list(dict.fromkeys(name.split(" (")[0] for name in grouped.methods))
    methods = _list(names) if len(names) <= 3 else f"{len(names)} methods"
    return f"{methods} on {_list(sets) if len(sets) <= 3 else f'{len(sets)} data sets'}"


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def render(data: dict[str, Any]) -> str:
    """The page of a payload."""
    from plotly.offline import get_plotlyjs

    parts = {
        "title": html.escape(data["title"]),
        "style": _file("page.css"),
        "plotly": packed(get_plotlyjs()),
        "data": packed(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        "scripts": "\n".join(_file(name) for name in SCRIPTS),
    }
    # One pass over the template alone, so that nothing inside a part is taken for a place to fill.
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], _file("page.html"))


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _file(name: str) -> str:
    return resources.files("fedacd.report").joinpath(name).read_text("utf-8")
