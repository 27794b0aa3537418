"""The parts of the page that grow with clients and classes, within a budget: matrices, partitions, weights."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from fedacd.report.group import Grouped
from fedacd.report.read import Run
from fedacd.report.series import weights

BUDGET = 1_500_000
"""Bytes that each of the three may take in the page: so 30 runs of 100 classes stay below 8 MB with plotly.js."""


def matrices(grouped: Grouped, notes: list[str]) -> list[dict[str, Any]]:
    """P of the last round's participants, on their own data and on the test set. The first seeds come first, and of
    each run its first clients: the same clients of every method can be put side by side."""

    def all_() -> Iterator[tuple[tuple[int, int, int], dict[str, Any], int]]:
        for group in grouped.groups:
            for rank, run in enumerate(group.runs):
                for place, client in enumerate(_clients(run)):
                    own, test = (run.matrices.get(f"{kind}/{client}") for kind in ("own", "test"))
                    about = {"problem": group.problem, "method": group.method, "seed": run.seed, "client": client}
                    packed = {"own": pack(own), "test": pack(test)}
                    size = sum(len(text) for text in packed.values() if text)
                    yield (rank, place, group.method), about | packed, size

    return _within_budget(all_(), "probability matrices of some clients", notes)


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
    found: dict[tuple[int, int], Run] = {}
    for group in grouped.groups:
        for run in group.runs:
            if run.counts is not None:
                found.setdefault((group.problem, run.seed), run)

    def all_() -> Iterator[tuple[tuple[int, int, int], dict[str, Any], int]]:
        for (problem, seed), run in found.items():
            assert run.counts is not None
            about = {"problem": problem, "seed": seed, "counts": run.counts.tolist()}
            yield (seed, problem, 0), about, 3 * run.counts.size

    return _within_budget(all_(), "the partitions of some seeds", notes)


def shares(grouped: Grouped, notes: list[str]) -> list[dict[str, Any]]:
    """The aggregation weights of each run."""

    def all_() -> Iterator[tuple[tuple[int, int, int], dict[str, Any], int]]:
        for group in grouped.groups:
            for rank, run in enumerate(group.runs):
                if found := weights(run):
                    about = {"problem": group.problem, "method": group.method, "seed": run.seed}
                    size = 10 * sum(map(len, found["shares"]))
                    yield (rank, group.problem, group.method), about | found, size

    return _within_budget(all_(), "the aggregation weights of some seeds", notes)


def _within_budget(
    entries: Iterable[tuple[tuple[int, int, int], dict[str, Any], int]], what: str, notes: list[str]
) -> list[dict[str, Any]]:
    """The first entries by rank that fit; at least one. What is left out is said."""
    kept: list[dict[str, Any]] = []
    spent = left = 0
    for _, entry, size in sorted(entries, key=lambda entry: entry[0]):
        if kept and spent + size > BUDGET:
            left += 1
            continue
        kept.append(entry)
        spent += size
    if left:
        notes.append(f"{what} are left out to keep the page small: {left} of {left + len(kept)}")
    return sorted(kept, key=lambda entry: (entry["problem"], entry["seed"], entry.get("method", 0)))
