"""`fedacd report` as a person calls it."""

import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedacd.cli_exits import reporting
from fedacd.records import ROUNDS
from fedacd.report import write
from fedacd.report.command import report
from fedacd.tables.summaries import write_summaries
from tests.report.made import make_many, make_run

app = typer.Typer()
app.command()(reporting()(report))


def test_a_page_is_written_and_its_path_printed(tmp_path: Path) -> None:
    make_many(tmp_path / "runs", seeds=2)
    out = tmp_path / "new" / "page.html"
    result = CliRunner().invoke(app, [str(tmp_path / "runs"), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert f"Report of 24 runs: {out}" in result.stdout
    assert "FedACD is" in result.stdout
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_a_page_of_one_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(make_run(tmp_path / "a")), "-o", str(tmp_path / "page.html")])
    assert f"Report of 1 run: {tmp_path / 'page.html'}" in result.stdout


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "a") / ROUNDS
    path.write_text(path.read_text() + '{"round": 13, "acc')
    result = CliRunner().invoke(app, [str(tmp_path / "runs"), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert "note: line 13 of" in result.stderr


def test_a_page_of_summaries_alone(tmp_path: Path) -> None:
    write_summaries([make_many(tmp_path / "runs", seeds=2)], tmp_path / "results")
    results = [
        CliRunner().invoke(app, [str(tmp_path / name), "-o", str(tmp_path / "a")]) for name in ("runs", "results")
    ]
    assert [result.exit_code for result in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    assert "Report of 24 runs" in results[1].stdout
    assert results[1].stderr.startswith("note: 24 of 24 runs are summaries: ")


@pytest.mark.parametrize("where", ["empty", "nowhere"])
def test_nothing_to_report(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, [str(tmp_path / where), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "page.html").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "page.html"
    result = CliRunner().invoke(app, [str(tmp_path / "a"), "-o", str(out)])
    assert result.exit_code == 2
    assert f"error: cannot write {out}" in result.stderr
    for out in (tmp_path / "a", Path(), Path("..")):
        result = CliRunner().invoke(app, [str(tmp_path / "a"), "-o", str(out)])
        assert result.exit_code == 2
        assert result.stderr == f"error: out = '{out}': is a folder; name a file, such as {out / 'report.html'}.\n"


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    nasty = '</script><img src=x onerror="alert(1)"><!--data-->'
    make_run(tmp_path / "a", data__name=nasty)
    write([tmp_path / "a"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<img" not in page
    assert page.count("</script>") == 3
    assert page.count("alert(1)") == page.count("onerror=&quot;alert(1)&quot;") == 2  # title and heading


def test_thirty_runs_of_a_hundred_classes_stay_small_and_quick(tmp_path: Path) -> None:
    make_many(tmp_path / "runs", seeds=3, rounds=200, classes=100, clients=20)
    start = time.process_time()
    data = write([tmp_path / "runs"], tmp_path / "page.html")
    assert len(data["runs"]) == 36
    assert time.process_time() - start < 10
    assert (tmp_path / "page.html").stat().st_size < 8e6
