"""A filled table as text: for a terminal, Markdown, LaTeX, CSV and JSON."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from rich.align import Align
from rich.table import Table as Grid
from rich.text import Text

from fedacd.display import table_width
from fedacd.metrics import LATE
from fedacd.tables.cells import Cell, Filled
from fedacd.tables.declare import SEEDS
from fedacd.tables.formats import (
    csv_text,
    escape,
    latex_ranked,
    latex_table,
    markdown_ranked,
    markdown_table,
    plain,
)

KINDS = ("ours", "paper", "diff")


def _how(filled: Filled) -> list[str]:
    """What the numbers are."""
    rounds = min(LATE, filled.wanted.rounds)
    late = f"the mean over the last {rounds} rounds" if rounds > 1 else "the only round"
    return [
        f"ours: mean and standard deviation over seeds of {late}",
        f"n beside the cell where it is not {SEEDS}",
        "differs: from the paper by more than two standard deviations of the difference, pooled over both, and half of "
        "the paper's last digit",
    ]


def _texts(cell: Cell) -> tuple[str, str, str]:
    """One for each of `KINDS`."""
    if not cell.late:
        return "-", cell.paper.text, "-"
    digits = cell.metric.decimals
    spread = "" if cell.late.sd is None else f"±{cell.late.sd:.{digits}f}"
    seeds = "" if cell.n == SEEDS else f" n={cell.n}"
    return f"{cell.late.mean:.{digits}f}{spread}{seeds}", cell.paper.text, f"{cell.difference:+.{digits}f}"


def for_terminal(filled: Filled, width: int) -> tuple[list[Grid], list[str]]:
    """Blocks of as many groups of columns as fit; a group is divided if it alone does not, and a column without a group
    is one by itself. And the names of the groups that are left out: there is nothing of ours in them."""
    table, columns = filled.wanted.table, filled.wanted.table.columns
    groups = [
        [number for number, _ in group]
        for _, group in itertools.groupby(enumerate(columns), lambda pair: pair[1].group or pair[0])
    ]
    shown = [group for group in groups if any(line[number].late for line in filled.cells for number in group)]
    empty = [columns[group[0]] for group in groups if group not in shown]
    blocks: list[list[int]] = [[]]
    for group in shown:
        for part in [group] if _fits(filled, group, width) else [[number] for number in group]:
            if not blocks[-1] or _fits(filled, [*blocks[-1], *part], width):
                blocks[-1] += part
            else:
                blocks.append(part)
    return [grid(filled, block) for block in blocks], [c.group or f"{table.varies} {c.label}" for c in empty]


def _fits(filled: Filled, columns: Sequence[int], width: int) -> bool:
    return table_width(grid(filled, columns)) <= width


def grid(filled: Filled, columns: Sequence[int] | None = None) -> Grid:
    """Some columns, or all: three lines a row. Marks stand in the text as well, for a terminal without styles."""
    table = filled.wanted.table
    columns = range(len(table.columns)) if columns is None else columns
    found = Grid(box=None, padding=(0, 2, 0, 0), title=None, header_style="bold")
    found.add_column("", no_wrap=True)
    found.add_column(table.varies, no_wrap=True)
    for column in (table.columns[number] for number in columns):
        # Aligned, not justified, here and below: that would take the space for a mark away.
        width = max(len(column.group), len(column.label))
        heading = [f"{part:>{width}} " for part in (column.group, column.label) if part]
        found.add_column(Align.right(Text("\n".join(heading))), no_wrap=True)
    for line in filled.cells:
        for kind, name in enumerate(KINDS):
            cells = [_styled(line[number], _texts(line[number])[kind], name) for number in columns]
            found.add_row(line[0].row.label if kind == 0 else "", Text(name, "dim"), *map(Align.right, cells))
    return found


def _styled(cell: Cell, text: str, kind: str) -> Text:
    if kind == "paper":
        return Text(text + " ", "dim")
    if kind == "diff":
        return Text(text + ("!" if cell.differs else " "), "yellow" if cell.differs else "dim")
    mark, style = {1: ("*", "bold"), 2: ("+", "underline"), None: (" ", "")}[cell.rank]
    return Text(text, style) + Text(mark)


def legend(filled: Filled) -> str:
    return "* best, + second best, ! differs; " + "; ".join(_how(filled)) + "."


def markdown(filled: Filled) -> str:
    table = filled.wanted.table
    heads = ["", table.varies, *(f"{column.group} {column.label}".strip() for column in table.columns)]
    rows = []
    for line in filled.cells:
        for kind, name in enumerate(KINDS):
            label = plain(line[0].row.label) if kind == 0 else ""
            rows.append([label, name, *(_marked(cell, _texts(cell)[kind], name) for cell in line)])
    notes = ["**Best**, _second best_, (!) differs; " + "; ".join(map(plain, _how(filled))) + "."]
    notes += map(plain, filled.notes)
    made = ["Made by", f"    {filled.command}"] if filled.command else []
    return "\n\n".join([f"### {plain(filled.title)}", markdown_table(heads, rows, 2), *notes, *made]) + "\n"


def _marked(cell: Cell, text: str, kind: str) -> str:
    if kind == "diff":
        return text + (" (!)" if cell.differs else "")
    return markdown_ranked(text, cell.rank if kind == "ours" else None)


def latex(filled: Filled) -> str:
    table = filled.wanted.table
    subject = filled.subject[0].upper() + filled.subject[1:]
    told = "; ".join([*_how(filled), *(note.rstrip(".") for note in filled.notes)])
    caption = rf"{escape(subject)} (table {table.number} of the paper). Bold: best; underlined: second best; "
    caption += rf"$\dagger$: differs; {escape(told)}."
    heads = ["", table.varies, *(column.label for column in table.columns)]
    blocks = []
    for line in filled.cells:
        labels = [escape(line[0].row.label), *[""] * (len(KINDS) - 1)]
        cells = [[_tex_cell(cell, _texts(cell)[kind], name) for cell in line] for kind, name in enumerate(KINDS)]
        blocks.append([[label, name, *row] for label, name, row in zip(labels, KINDS, cells, strict=True)])
    return latex_table(caption, heads, [column.group for column in table.columns], blocks)


def _tex_cell(cell: Cell, text: str, kind: str) -> str:
    if kind == "diff":
        return (f"${text}$" if text != "-" else "-") + (r"$^{\dagger}$" if cell.differs else "")
    return latex_ranked(text, cell.rank if kind == "ours" else None)


def records(filled: Filled) -> list[dict[str, Any]]:
    """A flat record a cell."""
    found = []
    for cell in itertools.chain.from_iterable(filled.cells):
        record: dict[str, Any] = {
            "table": filled.wanted.table.number,
            "row": cell.row.label,
            "method": cell.row.method,
            "group": cell.column.group,
            "column": cell.column.label,
            "dataset": cell.column.dataset,
            "beta": cell.column.beta,
            "metric": cell.column.metric,
            "rounds": filled.wanted.rounds,
            "precision": filled.wanted.precision,
            "n": cell.n,
        }
        for name, value in (("ours", cell.late), ("last", cell.last), ("best", cell.best)):
            record[name] = value.mean if value else None
            record[f"{name}_sd"] = value.sd if value else None
        record |= {
            "paper": cell.paper.mean,
            "paper_sd": cell.paper.sd,
            "difference": cell.difference,
            "difference_sd": cell.difference_sd,
            "differs": cell.differs,
            "rank": cell.rank,
            "seeds": cell.seeds,
            "runs": [run.name for run in cell.runs],
        }
        found.append(record)
    return found


def as_csv(filled: Filled) -> str:
    return csv_text(records(filled))


def as_json(filled: Filled) -> str:
    content = {"title": filled.title, "notes": [*_how(filled), *filled.notes], "cells": records(filled)}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


FORMATS = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
