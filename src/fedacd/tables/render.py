"""A filled table as text: for a terminal, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import itertools
import json
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from fedacd.tables.cells import Cell, Filled, Spread
from fedacd.tables.declare import SEEDS

KINDS = ("ours", "paper", "diff")
HOW = (
    "ours: mean and standard deviation over seeds of the mean over the last 10 rounds",
    f"n beside the cell where it is not {SEEDS}",
    "differs: from the paper by more than two standard deviations of the difference, pooled over both, and half of the "
    "paper's last digit",
)


def spread(cell: Cell, value: Spread) -> str:
    digits = cell.metric.decimals
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f"±{value.sd:.{digits}f}")


def _ours(cell: Cell) -> str:
    if not cell.late:
        return "-"
    return spread(cell, cell.late) + (f" n={cell.n}" if cell.n != SEEDS else "")


def _difference(cell: Cell) -> str:
    return "-" if cell.difference is None else f"{cell.difference:+.{cell.metric.decimals}f}"


def _texts(cell: Cell) -> tuple[str, str, str]:
    return _ours(cell), cell.paper.text, _difference(cell)


def for_terminal(filled: Filled) -> Grid:
    """Three lines a row. Marks stand in the text as well, for a terminal without styles."""
    table = filled.wanted.table
    grid = Grid(box=None, padding=(0, 2, 0, 0), title=None, header_style="bold")
    grid.add_column("", no_wrap=True)
    grid.add_column(table.varies, no_wrap=True)
    for column in table.columns:
        grid.add_column(f"{column.group}\n{column.label}".strip(), justify="right", no_wrap=True)
    for line in filled.cells:
        for kind, name in enumerate(KINDS):
            cells = [_styled(cell, _texts(cell)[kind], name) for cell in line]
            grid.add_row(line[0].row.label if kind == 0 else "", Text(name, "dim"), *cells)
    return grid


def _styled(cell: Cell, text: str, kind: str) -> Text:
    if kind == "paper":
        return Text(text + " ", "dim")
    if kind == "diff":
        return Text(text + ("!" if cell.differs else " "), "yellow" if cell.differs else "dim")
    mark, style = {1: ("*", "bold"), 2: ("+", "underline"), None: (" ", "")}[cell.rank]
    return Text(text, style) + Text(mark)


def legend() -> str:
    return "* best, + second best, ! differs; " + "; ".join(HOW) + "."


def markdown(filled: Filled) -> str:
    table = filled.wanted.table
    heads = ["", table.varies, *(f"{column.group} {column.label}".strip() for column in table.columns)]
    lines = [f"### {_plain(filled.title)}", "", _row(heads), _row(["---", "---", *["---:"] * len(table.columns)])]
    for line in filled.cells:
        for kind, name in enumerate(KINDS):
            label = line[0].row.label if kind == 0 else ""
            lines.append(_row([_plain(label), name, *(_marked(cell, _texts(cell)[kind], name) for cell in line)]))
    notes = ["**Best**, _second best_, (!) differs; " + "; ".join(HOW) + ".", *filled.notes]
    return "\n".join([*lines, "", *itertools.chain.from_iterable((_plain(note), "") for note in notes)]).rstrip() + "\n"


def _marked(cell: Cell, text: str, kind: str) -> str:
    if kind == "diff":
        return text + (" (!)" if cell.differs else "")
    around = {1: "**", 2: "_"}.get(cell.rank or 0, "") if kind == "ours" else ""
    return f"{around}{text.replace('±', ' ± ')}{around}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("FedACD_base", "FedACD\\_base")


_TEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def escape(text: str) -> str:
    """Any text as LaTeX."""
    return "".join(_TEX.get(letter, letter) for letter in text)


def latex(filled: Filled) -> str:
    """A table environment for a document that has booktabs."""
    table = filled.wanted.table
    groups = [(group, len(list(columns))) for group, columns in itertools.groupby(table.columns, lambda c: c.group)]
    told = "; ".join([*HOW, *(note.rstrip(".") for note in filled.notes)])
    lines = [
        r"% In the preamble: \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"  \centering\scriptsize\setlength{\tabcolsep}{3pt}",
        rf"  \caption{{{escape(filled.subject)} (table {table.number} of the paper). Bold: best; underlined:",
        rf"    second best; $\dagger$: differs. {escape(told)}.}}",
        rf"  \begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        r"    \toprule",
    ]
    if any(group for group, _ in groups):
        spans = [rf"\multicolumn{{{width}}}{{c}}{{{escape(group)}}}" for group, width in groups]
        lines.append("     & & " + " & ".join(spans) + r" \\")
    labels = " & ".join(escape(column.label) for column in table.columns)
    lines += [rf"     & {escape(table.varies)} & {labels} \\"]
    for line in filled.cells:
        lines.append(r"    \midrule")
        for kind, name in enumerate(KINDS):
            label = escape(line[0].row.label) if kind == 0 else ""
            cells = " & ".join(_tex_cell(cell, _texts(cell)[kind], name) for cell in line)
            lines.append(rf"    {label} & {name} & {cells} \\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table*}"]) + "\n"


def _tex_cell(cell: Cell, text: str, kind: str) -> str:
    if kind == "diff":
        return (f"${text}$" if text != "-" else "-") + (r"$^{\dagger}$" if cell.differs else "")
    command = {1: r"\textbf", 2: r"\underline"}.get(cell.rank or 0) if kind == "ours" else None
    return f"{command}{{{escape(text)}}}" if command else escape(text)


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
    lines = records(filled)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in line.items()})
    return text.getvalue()


def as_json(filled: Filled) -> str:
    content = {"title": filled.title, "notes": [*HOW, *filled.notes], "cells": records(filled)}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


FORMATS = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
