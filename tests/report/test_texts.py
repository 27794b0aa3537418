"""The comparison as Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedacd.cli_exits import reporting
from fedacd.report import collect, texts
from fedacd.report.command import report
from tests.report.made import flat, make_run
from tests.tables.test_cells import assert_well_formed, compile_latex, needs_latex

app = typer.Typer()
app.command()(reporting()(report))

ACD, AVG = (0.90, 0.92, 0.91), (0.80, 0.81, 0.83)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """At beta 0.1 FedACD and FedAvg with three seeds, FedLC with one, in between; at 0.05 FedAvg alone, unfinished."""
    for method, levels in (("fedacd", ACD), ("fedavg", AVG), ("fedlc", (0.85,))):
        for seed, level in enumerate(levels):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, change=flat(level))
    make_run(tmp_path / "cut", partition__beta=0.05, method="fedavg", done=4, change=flat(0.5))
    return collect([tmp_path])


def test_markdown(data: dict[str, Any]) -> None:
    """FedACD: mean 91, deviation 1. FedAvg: mean 81.33, deviation sqrt(((-4/3)^2 + (-1/3)^2 + (5/3)^2) / 2) = 1.53. The
    differences 10, 11 and 8 have t = 9.67 / (1.53 / sqrt 3) = 10.96, p = 0.008: sure, the only pair that has a test."""
    text = texts.markdown(data)
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "|  | digits beta 0.05 | digits beta 0.1 |",
        "| --- | ---: | ---: |",
        "| FedACD | - | **91.00 ± 1.00** |",
        "| FedAvg | 50.00 n=1 | 81.33 ± 1.53 † |",
        "| FedLC | - | _85.00 n=1_ |",
    ]
    assert "over 3 seeds, or as many as stand beside a cell (n)" in text
    assert "p \\< 0.05" in text
    assert "FedAvg on digits, beta 0.05 (unfinished: 4 of 12 rounds)." in text


def test_records(data: dict[str, Any]) -> None:
    lines = list(csv.DictReader(io.StringIO(texts.as_csv(data))))
    cut, acd, avg, lc = lines
    assert [acd["method"], avg["method"], lc["method"]] == ["FedACD", "FedAvg", "FedLC"]
    assert [acd["rank"], lc["rank"], avg["rank"], cut["rank"]] == ["1", "2", "3", ""]
    assert avg["seeds"] == "0 1 2"
    assert float(avg["accuracy"]) == pytest.approx(244 / 3, abs=1e-5)
    assert float(avg["accuracy_sd"]) == pytest.approx((21 / 9) ** 0.5, abs=1e-5)
    assert float(avg["to_best"]) == pytest.approx(-29 / 3, abs=1e-4)
    assert float(avg["p"]) == pytest.approx(0.00823, abs=1e-5)  # scipy.stats.ttest_1samp([10, 11, 8], 0)
    assert [avg["verdict"], lc["verdict"], acd["verdict"]] == ["sure", "one seed", ""]
    assert float(lc["to_best"]) == pytest.approx(85 - 90)  # in seed 0
    assert acd["to_best"] == ""
    assert float(acd["kl_local"]) == 2.0
    assert cut["unfinished"] == "unfinished: 4 of 12 rounds"

    content = json.loads(texts.as_json(data))
    assert content["cells"] == texts.records(data)
    assert content["headlines"] == data["headlines"]
    first = content["pairs"][0]
    assert [first["first"], first["second"], first["problem"]] == ["FedACD", "FedAvg", "digits, beta 0.1"]
    assert first["mean"] == pytest.approx(29 / 3, abs=1e-4)
    assert first["end"] is None
    assert first["words"].startswith("FedACD is better than FedAvg on digits at beta 0.1 by 9.7 points")


def test_the_difference_to_the_best_has_its_sign_whatever_the_order(tmp_path: Path) -> None:
    for method, level in (("fedacd", 0.5), ("fedlc", 0.7), ("fedavg", 0.6)):
        make_run(tmp_path / method, method=method, change=flat(level))
    acd, avg, lc = texts.records(collect([tmp_path]))
    assert [acd["to_best"], avg["to_best"], lc["to_best"]] == pytest.approx([-20, -10, None])
    assert [acd["rank"], avg["rank"], lc["rank"]] == [3, 2, 1]


def test_seeds_are_those_that_are_counted(tmp_path: Path) -> None:
    for method in ("fedacd", "fedavg"):
        for seed in range(3):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, done=4 if seed == 1 else 12)
    assert [(cell["n"], cell["seeds"]) for cell in texts.records(collect([tmp_path]))] == [(2, [0, 2])] * 2


def test_up_to_which_round_an_unfinished_pair_was_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", method="fedavg", done=4)
    (pair,) = json.loads(texts.as_json(collect([tmp_path])))["pairs"]
    assert pair["end"] == 4


def test_equal_methods_share_their_rank(tmp_path: Path) -> None:
    for method, level in (("fedacd", 0.7), ("fedlc", 0.7), ("fedavg", 0.6)):
        make_run(tmp_path / method, method=method, change=flat(level))
    assert [cell["rank"] for cell in texts.records(collect([tmp_path]))] == [1, 3, 1]


def test_one_number_of_seeds_is_said_once(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / str(seed), seed=seed, change=flat(0.5 + seed / 100))
    text = texts.markdown(collect([tmp_path]))
    assert "| FedACD | 50.50 ± 0.71 |" in text
    assert "over 2 seeds." in text
    assert "n=" not in text


def test_a_run_without_a_round_has_no_number(tmp_path: Path) -> None:
    make_run(tmp_path / "a", method="fedavg")
    make_run(tmp_path / "b", done=0)
    data = collect([tmp_path])
    assert "| FedACD | - |" in texts.markdown(data)
    assert texts.records(data)[0]["accuracy"] is None


def test_latex_is_well_formed(data: dict[str, Any]) -> None:
    text = texts.latex(data)
    assert_well_formed(text, columns=3)
    assert r"FedACD & - & \textbf{91.00$\pm$1.00} \\" in text
    assert r"FedAvg & 50.00 n=1 & 81.33$\pm$1.53$^{\dagger}$ \\" in text
    assert r"FedLC & - & \underline{85.00 n=1} \\" in text


NASTY = "a_b|c<d>&e%{f}$g#h~i^j\\k*l`m"


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    make_run(tmp_path / "a", data__name=NASTY)
    data = collect([tmp_path])
    assert r"a\_b\|c\<d>&e%{f}$g#h~i^j\\k\*l\`m beta 0.1" in texts.markdown(data)
    assert_well_formed(texts.latex(data), columns=2)


@needs_latex
def test_latex_compiles(data: dict[str, Any], tmp_path: Path) -> None:
    compile_latex(texts.latex(data), tmp_path)
    make_run(tmp_path / "nasty" / "a", data__name=NASTY)
    compile_latex(texts.latex(collect([tmp_path / "nasty"])), tmp_path)


def test_all_files_by_command(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    names = ("markdown", "latex", "csv", "json")
    options = [word for name in names for word in (f"--{name}", str(tmp_path / f"t.{name}"))]
    result = CliRunner().invoke(app, [str(tmp_path / "a"), "-o", str(tmp_path / "r.html"), *options])
    assert result.exit_code == 0, result.output
    written = {name: (tmp_path / f"t.{name}").read_text() for name in names}
    data = collect([tmp_path / "a"])
    data["made"] = json.loads(written["json"])["made"]
    assert written == {name: texts.FORMATS[name](data) for name in names}


@pytest.mark.parametrize("name", ["missing/t.md", "folder", "r.html"])
def test_a_file_that_cannot_be_written_is_told_before_any_is(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "folder").mkdir()
    result = CliRunner().invoke(
        app, [str(tmp_path / "a"), "-o", str(tmp_path / "r.html"), "--csv", str(tmp_path / name)]
    )
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: csv = '{tmp_path / name}': ")
    assert not (tmp_path / "r.html").exists()
