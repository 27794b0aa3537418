"""Tables as text in Markdown, LaTeX and CSV, whatever they are about: cells come as finished text."""

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\|_*`<"})

_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
    }
)

_AROUND = {1: "**", 2: "_"}
_COMMAND = {1: r"\textbf", 2: r"\underline"}


def plain(text: str) -> str:
    """Any text as Markdown that shows it."""
    return text.translate(_MARKDOWN)


def escape(text: str) -> str:
    """Any text as LaTeX that shows it."""
    return text.translate(_TEX)


def markdown_ranked(text: str, rank: int | None) -> str:
    """Best in bold, second best in italics."""
    around = _AROUND.get(rank or 0, "")
    return f"{around}{text.replace('±', ' ± ')}{around}"


def latex_ranked(text: str, rank: int | None) -> str:
    """Best in bold, second best underlined."""
    command = _COMMAND.get(rank or 0)
    return f"{command}{{{escape(text)}}}" if command else escape(text)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], leading: int) -> str:
    """Lines of Markdown; all but the `leading` columns are aligned at the right."""
    under = ["---"] * leading + ["---:"] * (len(heads) - leading)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, under, *rows])


def latex_table(
    caption: str, heads: Sequence[str], groups: Sequence[str], blocks: Sequence[Sequence[Sequence[str]]]
) -> str:
    """A table environment for a document that has booktabs: a rule before each block of rows. `groups` has the heading
    above each of the last columns; the columns before these are aligned at the left."""
    leading = len(heads) - len(groups)
    lines = [
        r"% In the preamble: \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"  \centering\scriptsize\setlength{\tabcolsep}{3pt}",
        rf"  \caption{{{caption}}}",
        rf"  \begin{{tabular}}{{{'l' * leading}{'r' * len(groups)}}}",
        r"    \toprule",
    ]
    if any(groups):
        spans = [(group, len(list(same))) for group, same in itertools.groupby(groups)]
        above = [rf"\multicolumn{{{width}}}{{c}}{{{escape(group)}}}" for group, width in spans]
        lines.append("    " + " & ".join([""] * leading + above) + r" \\")
    lines.append("    " + " & ".join(map(escape, heads)) + r" \\")
    for block in blocks:
        lines.append(r"    \midrule")
        lines += [rf"    {' & '.join(cells)} \\" for cells in block]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table*}"]) + "\n"


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """A line a record; the items of a list stand with spaces between them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in record.items()})
    return text.getvalue()
