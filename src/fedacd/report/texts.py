"""The comparison for a paper or another program: Markdown, LaTeX, CSV and JSON, of what the page shows.

Markdown and LaTeX have a row for each method and a column for each problem, accuracy in percent. CSV and JSON have a
record for each of these cells, with all metrics and how far the method is from the best of its problem.
"""

import json
from collections import Counter
from typing import Any, NamedTuple

from fedacd.metrics import LATE
from fedacd.report.compare import ENOUGH
from fedacd.report.student import SURE
from fedacd.tables.formats import (
    csv_text,
    escape,
    latex_ranked,
    latex_table,
    markdown_ranked,
    markdown_table,
    plain,
)

Data = dict[str, Any]
"""What `page.payload` makes."""

Pairs = dict[tuple[int, int, int], dict[str, Any]]


def records(data: Data) -> list[dict[str, Any]]:
    """A flat record for each method on each problem. `to_best` is the mean difference in points to the best method of
    the problem, over the seeds that both have. Of that difference are p, p corrected by Holm for all pairs of the
    problem, and the verdict.
    """
    pairs = _both_ways(data)
    ranks = _ranks(data, pairs)
    found = []
    for group in data["groups"]:
        number, method, row = group["problem"], group["method"], group["row"]
        problem, order = data["problems"][number], data["rankings"][number]
        record = {"dataset": problem["dataset"], "skew": problem["skew"], "setting": problem["rest"]}
        record |= {"method": data["methods"][method], "n": group["counted"], "seeds": group["counted_seeds"]}
        for key, value in row.items():
            record |= {key: value and value["mean"], f"{key}_sd": value and value["sd"]}
        record["rank"] = ranks.get((number, method))
        pair = pairs.get((number, method, order[0])) if order else None
        record["to_best"] = pair and pair["mean"]
        record |= {key: pair and pair[key] for key in ("p", "holm", "verdict")}
        found.append(record | {"unfinished": "; ".join(group["unfinished"])})
    return found


def _both_ways(data: Data) -> Pairs:
    """A pair by its problem and methods, in either order of these; `mean` is the first less the second."""
    pairs = {}
    for pair in data["pairs"]:
        pairs[pair["problem"], pair["a"], pair["b"]] = pair
        pairs[pair["problem"], pair["b"], pair["a"]] = pair | {"mean": -pair["mean"]}
    return pairs


def _ranks(data: Data, pairs: Pairs) -> dict[tuple[int, int], int]:
    """By problem and method; equal ones share theirs, and one alone has none."""
    ranks: dict[tuple[int, int], int] = {}
    for problem, order in enumerate(data["rankings"]):
        for place, method in enumerate(order if len(order) > 1 else []):
            ranks[problem, method] = place + 1
            pair = pairs.get((problem, method, order[place - 1])) if place else None
            if pair and pair["mean"] == 0:
                ranks[problem, method] = ranks[problem, order[place - 1]]
    return ranks


class Shown(NamedTuple):
    """A cell of Markdown and LaTeX."""

    text: str
    rank: int | None = None
    is_behind: bool = False
    """Surely behind the best."""


def _shown(data: Data) -> tuple[list[list[Shown]], list[str]]:
    """The cells of every method, by problem, and what must be said about them."""
    cells = records(data)
    numbers = Counter(cell["n"] for cell in cells if cell["accuracy"] is not None)
    usual = max((n for n in numbers if n > 1), key=lambda n: (numbers[n], n), default=1)
    rows = [[Shown("-") for _ in data["problems"]] for _ in data["methods"]]
    unfinished = []
    for group, cell in zip(data["groups"], cells, strict=True):
        if cell["accuracy"] is not None:
            spread = "" if cell["accuracy_sd"] is None else f"±{cell['accuracy_sd']:.2f}"
            seeds = "" if cell["n"] == usual else f" n={cell['n']}"
            is_behind = cell["verdict"] == "sure" and cell["to_best"] < 0
            shown = Shown(f"{cell['accuracy']:.2f}{spread}{seeds}", cell["rank"], is_behind)
            rows[group["method"]][group["problem"]] = shown
        if cell["unfinished"]:
            where = data["problems"][group["problem"]]["title"]
            unfinished.append(f"{cell['method']} on {where} ({cell['unfinished']}).")
    over = f"mean and standard deviation over {usual} seeds" if usual > 1 else "one seed"
    others = ", or as many as stand beside a cell (n)" if len(numbers) > 1 else ""
    notes = [
        f"Accuracy of the global model on the test set in percent, mean of the last {LATE} rounds; {over}{others}.",
        f"Surely behind the best: p < {SURE} in a paired t test over {ENOUGH} seeds or more, by Holm's correction for "
        "all pairs of a column.",
    ]
    return rows, notes + unfinished


def _labels(data: Data) -> list[str]:
    """What a problem is called beneath its data set."""
    return [", ".join(filter(None, (problem["skew"], problem["rest"]))) for problem in data["problems"]]


def markdown(data: Data) -> str:
    cells, notes = _shown(data)
    sets = [problem["dataset"] for problem in data["problems"]]
    heads = ["", *(plain(f"{name} {label}") for name, label in zip(sets, _labels(data), strict=True))]
    rows = [
        [plain(name), *(markdown_ranked(cell.text, cell.rank) + " †" * cell.is_behind for cell in row)]
        for name, row in zip(data["methods"], cells, strict=True)
    ]
    marks = "**Best**, _second best_, † surely behind the best."
    parts = [f"### {plain(data['title'])}", markdown_table(heads, rows, 1), marks, *map(plain, notes)]
    return "\n\n".join(parts) + "\n"


def latex(data: Data) -> str:
    cells, notes = _shown(data)
    sets = [problem["dataset"] for problem in data["problems"]]
    caption = rf"{escape(data['title'])}. Bold: best; underlined: second best; $\dagger$: surely behind the best. "
    rows = [
        [escape(name), *(latex_ranked(cell.text, cell.rank) + r"$^{\dagger}$" * cell.is_behind for cell in row)]
        for name, row in zip(data["methods"], cells, strict=True)
    ]
    return latex_table(caption + escape(" ".join(notes)), ["", *_labels(data)], sets, [rows])


def as_csv(data: Data) -> str:
    return csv_text(records(data))


def as_json(data: Data) -> str:
    names = data["methods"]
    pairs = [
        {"problem": data["problems"][pair["problem"]]["title"], "first": names[pair["a"]], "second": names[pair["b"]]}
        | {key: pair[key] for key in ("n", "mean", "low", "high", "p", "holm", "verdict", "end", "words")}
        for pair in data["pairs"]
    ]
    content = {key: data[key] for key in ("title", "made", "notes", "headlines")}
    return json.dumps(content | {"cells": records(data), "pairs": pairs}, indent=2, allow_nan=False) + "\n"


FORMATS = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
