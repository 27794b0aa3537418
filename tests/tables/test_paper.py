"""The paper's numbers, against the paper's own source where it is at hand."""

import os
import re
from pathlib import Path

import pytest

from fedacd.tables.declare import DATASETS, TABLES
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


HEADS = {
    "Dataset": "data.name",
    r"NonIID ($\beta$)": "partition.beta",
    r"NonIID($\beta)$": "partition.beta",
    "Client Num K": "partition.clients",
    r"Participation Ratio $\gamma$": "train.participation",
    "Local Epochs E": "train.epochs",
    r"$\lambda$": "method.lam",
}
"""What the paper calls a setting at the head of a table."""


def heads(source: str) -> list[dict[str, list[str]]]:
    """By setting what stands over every column of a table, in the paper's words."""
    tables = []
    for body in re.findall(r"\\begin\{tabular\}\{[^\n]*\}\n(.*?)\\end\{tabular\}", source, re.DOTALL):
        over: dict[str, list[str]] = {}
        for row in re.sub(r"\\(top|mid)rule", "", body).split(r"\\"):
            name, *cells = (cell.strip() for cell in row.split("&"))
            if r"\pm" in row:
                break
            over[HEADS[name]] = []
            for cell in cells:
                spans = re.fullmatch(r"\\multicolumn\{(\d+)\}\{c\}\{(.*)\}", cell)
                over[HEADS[name]] += [spans[2]] * int(spans[1]) if spans else [cell]
        tables.append(over)
    return tables


@pytest.mark.parametrize("number", list(TABLES))
def test_a_column_is_compared_with_the_papers_of_the_same_heading(source: str, number: int) -> None:
    over, table = heads(source)[number - 1], TABLES[number]
    assert {len(cells) for cells in over.values()} == {len(next(iter(table.paper.values())))}
    groups = {"data.name": "{}", "partition.clients": "{} clients"}
    for column in table.columns:
        here = {key: cells[column.paper] for key, cells in over.items()}
        for key, text in here.items():
            value = table.settings(table.rows[0], column)[key]
            assert value == (DATASETS[text] if key == "data.name" else float(text)), key
            if key in groups:
                assert column.group == groups[key].format(text)
            else:
                assert column.label == text


def test_what_a_table_does_not_vary_is_as_in_its_caption(source: str) -> None:
    before = source.split(r"\begin{tabular}")[:-1]
    captions = [re.findall(r"\\caption\{([^\n]*)\}\n", text)[-1] for text in before]
    fixed = {number: text for number, text in enumerate(captions, 1) if "conducted on" in text}
    assert list(fixed) == [4, 6, 7, 8, 9]
    for number, text in fixed.items():
        assert "conducted on CIFAR-100 with" in text
        assert {column.dataset for column in TABLES[number].columns} == {"cifar100"}
        (betas,) = re.findall(r"\\beta *(?:=|\\in \\\{)([0-9., ]+)", text)
        assert sorted({column.beta for column in TABLES[number].columns}) == sorted(map(float, betas.split(",")))


def test_there_are_505_numbers() -> None:
    sizes = {number: sum(map(len, reported(number).values())) for number in TABLES}
    assert sizes == {1: 90, 2: 90, 3: 90, 4: 49, 5: 90, 6: 56, 7: 4, 8: 6, 9: 30}


@pytest.mark.parametrize(
    ("number", "row", "column", "mean", "sd"),
    [
        (1, "FedACD", "CIFAR-100 0.1", 46.24, 0.17),
        (2, "FedNova", "CIFAR-10 0.1", 67.27, 5.83),
        (3, "FedLC", "CIFAR-10 0.05", 0.49, 0.062),
        (4, "CReFF", "100 clients 0.4", 20.86, 0.31),
        (4, "FedNH", "20 clients 0.2", 39.99, 0.12),
        (5, "FedAvg, mixup", "CIFAR-100 0.3", 46.43, 0.49),
        (6, "FedNH", "3", 42.17, 0.55),
        (7, "FedACD", "2", 45.35, 0.28),
        (8, "FedACD_base", "0.3", 48.63, 0.41),
        (9, "FedProx", "test set 0.05", 5.61, 0.18),
    ],
)
def test_a_number_of_each_table_read_by_eye(number: int, row: str, column: str, mean: float, sd: float) -> None:
    table = TABLES[number]
    (r,) = [r for r in table.rows if r.label == row]
    (c,) = [c for c in table.columns if f"{c.group} {c.label}".strip() == column]
    assert table.reported(r, c)[:2] == (mean, sd)


def test_rounding_is_half_of_the_last_digit() -> None:
    assert reported(3)["FedAvg"][0].rounding == pytest.approx(0.005)
    assert reported(1)["FedAvg"][0].rounding == pytest.approx(0.005)
