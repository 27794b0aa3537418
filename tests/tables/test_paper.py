"""The paper's numbers, against the paper's own source where it is at hand."""

import os
import re
from pathlib import Path

import pytest

from fedacd.tables.declare import TABLES
from fedacd.tables.paper import reported


@pytest.fixture
def source() -> str:
    path = os.environ.get("FEDACD_PAPER")
    if not path:
        pytest.skip("FEDACD_PAPER is not set: the paper's source is not at hand")
    return Path(path).read_text()


def printed(source: str) -> list[list[list[tuple[str, str]]]]:
    """The `mean_{\\pm sd}` of every table, by rows: a row is what stands between two line ends."""
    tables = []
    for body in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", source, re.DOTALL):
        rows = [re.findall(r"(\d+\.\d+)\}*_\{\\pm\s*(\d+\.\d+)", row) for row in body.split(r"\\")]
        tables.append([row for row in rows if row])
    return tables


def test_every_number_of_the_nine_tables_is_the_papers(source: str) -> None:
    tables = printed(source)
    assert len(tables) == 9
    for number, rows in enumerate(tables, 1):
        ours = [[tuple(cell.text.split("±")) for cell in row] for row in reported(number).values()]
        assert ours == rows, f"table {number}"


def test_the_rows_are_the_papers(source: str) -> None:
    bodies = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", source, re.DOTALL)
    for number, body in enumerate(bodies, 1):
        heads = [row.split("&")[0] for row in body.split(r"\\") if r"\pm" in row]
        names = [re.findall(r"(?:Fed[A-Za-z]+|CReFF)", head)[-1] for head in heads]
        assert [re.split("[,_]", label)[0] for label in reported(number)] == names
        if number == 5:
            assert [", mixup" in label for label in reported(5)] == ["w/ Input" in head for head in heads]
        if number == 8:
            assert [label.endswith("_base") for label in reported(8)] == ["base" in head for head in heads]


def test_there_are_505_numbers() -> None:
    sizes = {number: sum(map(len, reported(number).values())) for number in TABLES}
    assert sizes == {1: 90, 2: 90, 3: 90, 4: 49, 5: 90, 6: 56, 7: 4, 8: 6, 9: 30}


@pytest.mark.parametrize(
    ("number", "row", "column", "mean", "sd"),
    [
        (1, "FedACD", 4, 46.24, 0.17),
        (2, "FedNova", 1, 67.27, 5.83),
        (3, "FedLC", 2, 0.49, 0.062),
        (4, "CReFF", 6, 20.86, 0.31),
        (5, "FedAvg, mixup", 3, 46.43, 0.49),
        (6, "FedNH", 0, 42.17, 0.55),
        (7, "FedACD", 3, 45.35, 0.28),
        (8, "FedACD_base", 0, 48.63, 0.41),
        (9, "FedProx", 2, 5.61, 0.18),
    ],
)
def test_a_number_of_each_table_read_by_eye(number: int, row: str, column: int, mean: float, sd: float) -> None:
    assert reported(number)[row][column][:2] == (mean, sd)


def test_rounding_is_half_of_the_last_digit() -> None:
    assert reported(3)["FedAvg"][0].rounding == pytest.approx(0.005)
    assert reported(1)["FedAvg"][0].rounding == pytest.approx(0.005)
