import csv
import dataclasses
import io
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table as Grid

from fedacd.display import table_width
from fedacd.errors import RecordError
from fedacd.records import ROUNDS
from fedacd.tables import render
from fedacd.tables.cells import Cell, Filled, Spread, fill
from fedacd.tables.declare import TABLES, Column, Row, Table
from fedacd.tables.formats import escape
from fedacd.tables.look import look_in, read_from
from fedacd.tables.paper import Reported
from fedacd.tables.summaries import write_summaries
from fedacd.tables.wanted import Wanted
from tests.tables.conftest import made_run


def filled(wanted: Wanted, folder: Path) -> Filled:
    return fill(wanted, look_in(wanted, folder).matched)


@pytest.fixture
def some(wanted: Wanted, tmp_path: Path) -> Filled:
    """FedAvg at beta 0.3 with three seeds and at 0.1 with one; FedACD at 0.3 with three."""
    by_name = {want.name.replace("-clients3-epochs1-participation0.7", ""): want for want in wanted.runs}
    for seed, accuracy in enumerate((0.90, 0.91, 0.92)):
        made_run(tmp_path, by_name[f"digits-fedavg-beta0.3-seed{seed}"], [0.99, accuracy])
        made_run(tmp_path, by_name[f"digits-fedacd-beta0.3-seed{seed}"], [0.5, 0.95])
    made_run(tmp_path, by_name["digits-fedavg-beta0.1-seed0"], [0.5, 0.79])
    return filled(wanted, tmp_path)


def cell(late: list[float], paper: Reported) -> Cell:
    row, column = Row(label="", settings={}), Column(label="", settings={}, metric="accuracy", paper=0)
    found = Cell(row=row, column=column, paper=paper, runs=[], late=Spread.of(late))
    found.runs = [None] * len(late)  # type: ignore[list-item]  # only their number matters here
    return found


def test_ours_is_the_mean_over_seeds_of_the_late_mean(some: Filled) -> None:
    late = some.cells[0][0].late
    assert late is not None
    assert late.mean == pytest.approx(100 * (0.99 + 0.91) / 2)
    assert late.sd == pytest.approx(100 * 0.005)  # of 0.945, 0.95, 0.955: n - 1 in the divisor
    last, best = some.cells[0][0].last, some.cells[0][0].best
    assert last is not None
    assert best is not None
    assert [last.mean, best.mean] == pytest.approx([91, 99])
    assert some.cells[0][1].n == 1
    assert some.cells[1][1].late is None


def test_the_difference_by_hand() -> None:
    three = cell([74.0, 75.0, 76.0], Reported(77.0, 2.0, "77.00±2.00"))
    assert three.difference == pytest.approx(-2)
    assert three.difference_sd == pytest.approx(math.sqrt((2 * 1 + 2 * 4) / 4 * (1 / 3 + 1 / 3)))
    assert not three.differs  # 2 < 2 * 1.29
    assert cell([74.0, 75.0, 76.0], Reported(78.0, 2.0, "78.00±2.00")).differs
    one = cell([75.0], Reported(78.0, 2.0, "78.00±2.00"))
    assert one.difference_sd == pytest.approx(2 * math.sqrt(1 + 1 / 3))
    assert not one.differs
    assert cell([73.0], Reported(78.0, 2.0, "78.00±2.00")).differs  # 5 > 2 * 2.31


def test_the_papers_rounding_is_no_difference() -> None:
    assert not cell([0.5049], Reported(0.50, 0.0, "0.50±0.000")).differs
    assert cell([0.5051], Reported(0.50, 0.0, "0.50±0.000")).differs


def test_best_and_second_best(some: Filled, wanted: Wanted) -> None:
    assert [row[0].rank for row in some.cells] == [1, 2]
    assert [row[1].rank for row in some.cells] == [None, None]  # one alone is not the best of anything


def test_lower_is_better_for_risk_and_a_single_row_is_ranked_along(tmp_path: Path) -> None:
    seven = Wanted(TABLES[7], seeds=[0], rounds=1, precision="fp32")
    for want, accuracy in zip(seven.runs, (0.1, 0.4, 0.3, 0.2), strict=True):
        made_run(tmp_path, want, [accuracy])
    ranks = {c.late.mean: c.rank for c in filled(seven, tmp_path).cells[0] if c.late}
    assert ranks == {10.0: None, 40.0: 1, 30.0: 2, 20.0: None}
    three = Wanted(TABLES[3].cut(datasets=["cifar100"]), seeds=[0], rounds=1, precision="fp32")
    made_run(tmp_path, next(want for want in three.runs if "fedavg-beta0.3" in want.name), [0.1])
    path = made_run(tmp_path, next(want for want in three.runs if "fednh-beta0.3" in want.name), [0.1])
    (path / "rounds.jsonl").write_text((path / "rounds.jsonl").read_text().replace('"risk": 0.5', '"risk": 0.4'))
    assert [row[0].rank for row in filled(three, tmp_path).cells if row[0].n] == [2, 1]


def test_equal_ones_share_their_rank(tmp_path: Path) -> None:
    seven = Wanted(TABLES[7], seeds=[0], rounds=1, precision="fp32")
    for want, accuracy in zip(seven.runs, (0.3, 0.4, 0.4, 0.2), strict=True):
        made_run(tmp_path, want, [accuracy])
    assert (
        sorted((c.late.mean, c.rank) for c in filled(seven, tmp_path).cells[0] if c.late and c.rank) == [(40.0, 1)] * 2
    )


def test_the_title_says_what_is_less_than_the_papers(some: Filled) -> None:
    assert some.title == "Table 1: accuracy (%) on digits, 2 rounds (paper: 200), 1 to 3 seeds (paper: 3)"
    assert "5 of 12 runs are not finished and left out." in some.notes


def test_the_title_of_one_round(small: Table, tmp_path: Path) -> None:
    one = Wanted(small, seeds=[0], rounds=1, precision="fp32")
    made_run(tmp_path, one.runs[0], [0.5])
    assert filled(one, tmp_path).title == "Table 1: accuracy (%) on digits, 1 round (paper: 200), 1 seed (paper: 3)"


def test_no_finished_run(wanted: Wanted, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no finished run of table 1"):
        filled(wanted, tmp_path)


def test_a_record_that_cannot_be_read_is_left_out_and_named(wanted: Wanted, tmp_path: Path) -> None:
    made_run(tmp_path, wanted.runs[0], [0.1, 0.2])
    for want, damage in ((wanted.runs[1], "half a li"), (wanted.runs[2], '{"round": 1, "accuracy": 0.1}')):
        path = made_run(tmp_path, want, [0.1, 0.2]) / "rounds.jsonl"
        path.write_text(damage + "\n" + path.read_text().splitlines()[1] + "\n")
    some = filled(wanted, tmp_path)
    assert sum(cell.n for row in some.cells for cell in row) == 1
    assert [note.startswith("left out: ") for note in some.notes] == [False, True, True]
    assert some.notes[0] == "11 of 12 runs are not finished and left out."


def drawn(grid: Grid) -> str:
    text = io.StringIO()
    Console(width=1000, file=text).print(grid)
    return text.getvalue()


def test_terminal(some: Filled) -> None:
    assert [line.rstrip() for line in drawn(render.grid(some)).splitlines()] == [
        "                   digits       digits",
        "        beta          0.3          0.1",
        "FedAvg  ours   95.00±0.50*   64.50 n=1",
        "        paper  90.00±1.00   80.00±2.00",
        "        diff        +5.00!      -15.50!",
        "FedACD  ours   72.50±0.00+           -",
        "        paper  90.00±1.00   80.00±2.00",
        "        diff       -17.50!           -",
    ]


HEAD = re.compile(r"^ +[a-z]+  +([0-9. ]+)$")


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("number", list(TABLES))
def test_a_terminals_blocks_have_every_column_once_and_fit(number: int, width: int, tmp_path: Path) -> None:
    table = every(TABLES[number], tmp_path)
    blocks, empty = render.for_terminal(table, width)
    assert empty == []
    labels: list[str] = []
    for block in blocks:
        lines = drawn(block).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= table_width(block) <= width
        (head,) = [match for line in lines if (match := HEAD.match(line))]
        labels += head[1].split()
        assert [line.split("  ")[0] for line in lines if " ours " in line] == [
            row.label for row in table.wanted.table.rows
        ]
    assert labels == [column.label for column in TABLES[number].columns]


def test_a_block_has_as_many_whole_groups_as_fit(tmp_path: Path) -> None:
    table = every(TABLES[1], tmp_path)
    for width, columns in ((80, [3, 3, 3]), (100, [6, 3]), (160, [9]), (48, [2, 2, 2, 1, 1, 1]), (10, [1] * 9)):
        blocks = render.for_terminal(table, width)[0]
        assert [len(block.columns) - 2 for block in blocks] == columns, width


def test_groups_without_a_number_of_ours_are_left_out_and_named(tmp_path: Path) -> None:
    table = every(TABLES[1].cut(datasets=["cifar10", "tiny-imagenet"], methods=["fedavg"]), tmp_path)
    whole = Wanted(TABLES[1], seeds=[0], rounds=1, precision="fp32")
    blocks, empty = render.for_terminal(fill(whole, look_in(whole, tmp_path).matched), 160)
    assert empty == ["CIFAR-100"]
    assert [len(block.columns) - 2 for block in blocks] == [6]
    assert "CIFAR-100" in render.markdown(fill(whole, look_in(whole, tmp_path).matched))
    assert render.for_terminal(table, 160)[1] == []
    six = Wanted(TABLES[6], seeds=[0], rounds=1, precision="fp32")
    for want in six.runs:
        if want.settings["train.epochs"] < 10 and want.settings["method.name"] == "fednh":
            made_run(tmp_path / "six", want, [0.5])
    assert render.for_terminal(filled(six, tmp_path / "six"), 160)[1] == ["epochs 11", "epochs 13", "epochs 15"]


def test_markdown(some: Filled) -> None:
    text = render.markdown(some)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 * 3
    assert len({line.count("|") for line in rows}) == 1
    assert "| FedAvg | ours | **95.00 ± 0.50** | 64.50 n=1 |" in text
    assert "| +5.00 (!) |" in text
    assert text.startswith("### Table 1: accuracy")
    assert "Made by" not in text
    made = dataclasses.replace(some, command="fedacd table 1 --from 'my results'")
    assert render.markdown(made) == text + "\nMade by\n\n    fedacd table 1 --from 'my results'\n"


def test_csv_and_json(some: Filled) -> None:
    lines = list(csv.DictReader(io.StringIO(render.as_csv(some))))
    assert len(lines) == 4
    assert [float(lines[0]["last"]), float(lines[0]["best"])] == pytest.approx([91, 99])
    assert lines[0]["seeds"] == "0 1 2"
    assert lines[3]["ours"] == ""
    content = json.loads(render.as_json(some))
    assert content["title"] == some.title
    assert content["cells"][0]["difference"] == pytest.approx(5.0)
    assert content["cells"][1]["ours_sd"] is None
    assert len(content["cells"][0]["runs"]) == 3


def test_every_letter_that_latex_minds_is_escaped() -> None:
    assert escape("a_b & 5 % {x} ~ ^ \\ # $ |") == (
        r"a\_b \& 5 \% \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \# \$ \textbar{}"
    )


def every(table: Table, folder: Path) -> Filled:
    wanted = Wanted(table, seeds=[0], rounds=1, precision="fp32")
    for number, want in enumerate(wanted.runs):
        made_run(folder, want, [0.1 + 0.001 * number])
    return filled(wanted, folder)


def assert_well_formed(text: str, columns: int) -> None:
    body = re.sub(r"(?m)^%.*$", "", text)
    assert body.isascii()
    opened = re.findall(r"\\begin\{(\w+\*?)\}", body)
    assert opened == re.findall(r"\\end\{(\w+\*?)\}", body)[::-1]
    braces = re.sub(r"\\[{}]", "", body)
    assert braces.count("{") == braces.count("}")
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    assert not re.search(r"(?<![\\])[%#]", body)
    for line in body.splitlines():
        if line.endswith(r"\\"):
            spans = [int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) == columns
        else:
            assert not re.search(r"(?<!\\)&", line)


@pytest.mark.parametrize("number", list(TABLES))
def test_latex_is_well_formed(number: int, tmp_path: Path) -> None:
    assert_well_formed(render.latex(every(TABLES[number], tmp_path)), len(TABLES[number].columns) + 2)


def has_latex() -> bool:
    find = shutil.which("kpsewhich")
    return find is not None and subprocess.run([find, "booktabs.sty"], capture_output=True).returncode == 0


needs_latex = pytest.mark.skipif(
    not has_latex(), reason="LaTeX with booktabs is not installed: tables are checked by structure only"
)


def compile_latex(text: str, folder: Path) -> None:
    head = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (folder / "table.tex").write_text(head + text + "\\end{document}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    assert (folder / "table.pdf").exists()


@needs_latex
@pytest.mark.parametrize("number", list(TABLES))
def test_latex_compiles(number: int, tmp_path: Path) -> None:
    compile_latex(render.latex(every(TABLES[number], tmp_path / "runs")), tmp_path)


def test_records_from_before_there_was_a_metric(tmp_path: Path) -> None:
    """They fill the columns of the others, also beside a summary that has it."""
    table = TABLES[9]
    narrow = dataclasses.replace(
        table, rows=table.rows[:1], columns=[column for column in table.columns if column.label == "0.1"]
    )
    wanted = Wanted(narrow, seeds=[0], rounds=2, precision="fp32")
    run = made_run(tmp_path, wanted.runs[0], [0.5, 0.6])
    write_summaries([run], tmp_path / "new")
    lines = (run / ROUNDS).read_text()
    (run / ROUNDS).write_text(lines.replace(', "kl_test_99": 0.5', ""))
    assert (run / ROUNDS).read_text() != lines
    write_summaries([run], tmp_path / "old")
    for folders, known in (("old", 2), ("new", 3), ("old new", 3)):
        seen = read_from(lambda _: wanted, [tmp_path / name for name in folders.split()], None)
        (cells,) = fill(wanted, seen.matched).cells
        assert [cell.late is not None for cell in cells] == [True, True, known == 3], folders
    assert [cell.late is None for cell in filled(wanted, tmp_path).cells[0]] == [False, False, True]
    first, second = lines.splitlines()  # a run that was begun before and ended after
    (run / ROUNDS).write_text(first.replace(', "kl_test_99": 0.5', "") + "\n" + second + "\n")
    assert [cell.late is None for cell in filled(wanted, tmp_path).cells[0]] == [False, False, True]
