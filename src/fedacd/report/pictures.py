"""The parts of the page that grow with clients and classes, within a budget: matrices, partitions, weights."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedacd.report.group import Grouped
from fedacd.report.read import Run
from fedacd.report.series import weights

BUDGET = 1_500_000
"""Bytes that each of the three may take in the page: so 30 runs of 100 classes stay below 8 MB with plotly.js."""

Entry = tuple[tuple[int, int, int], dict[str, Any]]
"""What is shown, behind its rank."""


def matrices(grouped: Grouped, notes: list[str]) -> list[dict[str, Any]]:
    """P of the last round's participants, on their own data and on the test set. The first seeds come first, and of
    each run its first clients: the same clients of every method can be put side by side."""
    entries: list[Entry] = []
    for group in grouped.groups:
        for rank, run in enumerate(group.runs):
            for place, client in enumerate(_clients(run)):
                about = {"problem": group.problem, "method": group.method, "seed": run.seed, "client": client}
                packed = {kind: pack(run.matrices.get(f"{kind}/{client}")) for kind in ("own", "test")}
                entries.append(((rank, place, group.method), about | packed))
    return _within_budget(entries, "probability matrices of some clients", notes)


def _clients(run: Run) -> list[int]:
    """Who has a matrix."""
    return sorted({int(name.split("/")[1]) for name in run.matrices if name.split("/")[1].isdigit()})


def pack(P: Tensor | None) -> str | None:
    """One byte an entry, the root of the probability times 255: small ones keep their colour. Base64."""
    if P is None:
        return None
    root = P.double().nan_to_num(0).clamp(0, 1).sqrt().numpy()
    return base64.b64encode(np.rint(255 * root).astype(np.uint8).tobytes()).decode()


def partitions(grouped: Grouped, notes: list[str]) -> list[dict[str, Any]]:
    """Samples of each class that each client holds; the same for all methods at a seed."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    for group in grouped.groups:
        for run in group.runs:
            if run.counts is not None:
                found.setdefault((run.seed, group.problem), run.counts.tolist())
    entries: list[Entry] = [
        ((seed, problem, 0), {"problem": problem, "seed": seed, "counts": counts})
        for (seed, problem), counts in found.items()
    ]
    return _within_budget(entries, "the partitions of some seeds", notes)


def shares(grouped: Grouped, notes: list[str]) -> list[dict[str, Any]]:
    """The aggregation weights of each run."""
    entries: list[Entry] = []
    for group in grouped.groups:
        for rank, run in enumerate(group.runs):
            if found := weights(run):
                about = {"problem": group.problem, "method": group.method, "seed": run.seed}
                entries.append(((rank, group.problem, group.method), about | found))
    return _within_budget(entries, "the aggregation weights of some seeds", notes)


def _within_budget(entries: Sequence[Entry], what: str, notes: list[str]) -> list[dict[str, Any]]:
    """The first entries by rank that fit; at least one. What is left out is said."""
    kept: list[dict[str, Any]] = []
    spent = 0
    for _, entry in sorted(entries, key=lambda entry: entry[0]):
        size = len(json.dumps(entry))
        if not kept or spent + size <= BUDGET:
            kept.append(entry)
            spent += size
    if left := len(entries) - len(kept):
        notes.append(f"{what} are left out to keep the page small: {left} of {len(entries)}")
    return sorted(kept, key=lambda entry: (entry["problem"], entry["seed"], entry.get("method", 0)))
