"""The commands as a person meets them, with real runs on digits."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedacd import display
from fedacd.records import MODEL, ROUNDS, STATE, read_rounds
from fedacd.tables.declare import TABLES
from fedacd.tables.wanted import Wanted
from tests.tables.conftest import invoke, made_run, made_session

pytestmark = pytest.mark.usefixtures("only_small")

CUT = ["table", "1", "--rounds", "2", "--seeds", "1", "--device", "cpu"]


def test_a_table_from_nothing_to_every_format() -> None:
    stdout, _ = invoke(*CUT, "--plan")
    assert stdout == (
        "table 1: 4 runs needed, 0 done, 0 partly done, 4 missing; no estimate of time: no run like these "
        "is recorded on cpu in runs; one that is trained gives it, or --from a folder of others' runs or summaries\n"
    )
    assert not Path("runs").exists()
    files = ["--markdown", "t.md", "--latex", "t.tex", "--csv", "t.csv", "--json", "t.json"]
    stdout, _ = invoke(*CUT, *files)
    assert "1/4 digits-fedacd-beta0.1-" in stdout
    assert "round 2/2, accuracy " in stdout
    assert "Table 1: accuracy (%) on digits, 2 rounds (paper: 200), 1 seed (paper: 3)" in stdout
    assert "over seeds of the mean over the last 2 rounds;" in stdout
    assert len(list(Path("runs").iterdir())) == 4
    assert all(Path(name).read_text() for name in files[1::2])
    cells = json.loads(Path("t.json").read_text())["cells"]
    assert [cell["n"] for cell in cells] == [1, 1, 1, 1]
    run = Path("runs") / cells[0]["runs"][0]
    assert cells[0]["last"] == pytest.approx(100 * read_rounds(run)[-1]["accuracy"])

    again, _ = invoke(*CUT, "--json", "again.json")
    assert "4 runs needed, 4 done, 0 partly done, 0 missing" in again
    assert "round 2/2" not in again
    assert Path("again.json").read_text() == Path("t.json").read_text()

    invoke("summaries", "results", "runs")
    shown, _ = invoke(*CUT, "--from", "results", "--json", "from.json")
    assert "Table 1" in shown
    assert json.loads(Path("from.json").read_text()) == json.loads(Path("t.json").read_text())


def test_an_interrupted_run_goes_on_in_its_folder() -> None:
    one = [*CUT, "--method", "fedavg", "--beta", "0.3"]
    invoke(*one)
    (run,) = Path("runs").iterdir()
    whole = [{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(run)]
    lines = (run / ROUNDS).read_text().splitlines(keepends=True)
    (run / ROUNDS).write_text(lines[0] + lines[1][:20])
    (run / MODEL).unlink()
    (run / STATE).unlink()
    stdout, _ = invoke(*one, "--plan")
    assert "table 1: 1 run needed, 0 done, 1 partly done, 0 missing" in stdout
    assert f"{ROUNDS} is cut short and not counted: the run has to go on from round 1." in stdout
    invoke(*one)
    assert [{k: v for k, v in line.items() if k != "seconds"} for line in read_rounds(run)] == whole
    assert list(Path("runs").iterdir()) == [run]


def test_a_run_whose_checkpoint_knows_of_the_cut_line_begins_afresh() -> None:
    one = [*CUT, "--method", "fedavg", "--beta", "0.3"]
    invoke(*one, "--json", "whole.json")
    (run,) = Path("runs").iterdir()
    (run / ROUNDS).write_text((run / ROUNDS).read_text()[:-9])
    note = f"{run}: the last line of {ROUNDS} is cut short and not counted, and {STATE} is of that round: "
    assert f"note: {note}the run has to begin afresh.\n" in invoke(*one, "--plan")[0]
    stdout, _ = invoke("summaries", "results", "runs")
    assert f"note: {run / ROUNDS}: the last line is cut short and not counted.\n" in stdout
    assert "again" not in stdout + invoke("merge", "all", "runs")[0]
    stdout, _ = invoke(*one, "--json", "again.json")
    assert "the run begins afresh" in stdout
    assert "round 1/2" in stdout
    assert Path("again.json").read_text() == Path("whole.json").read_text()


def test_more_damage_than_a_cut_last_line_is_an_error() -> None:
    one = [*CUT, "--method", "fedavg", "--beta", "0.3"]
    invoke(*one)
    (run,) = Path("runs").iterdir()
    (run / ROUNDS).write_text("{")
    stdout, stderr = invoke(*one, code=1)
    assert "is of round 2: restore the lines, or remove the folder" in stdout
    assert "is damaged: it has 0 whole lines" in stderr
    assert "again" not in stdout + stderr


def test_shards_train_apart_and_are_merged() -> None:
    invoke(*CUT, "--method", "fedavg", "--shard", "1/2", "--out", "first")
    invoke(*CUT, "--method", "fedavg", "--shard", "2/2", "--out", "second")
    assert [len(list(Path(name).iterdir())) for name in ("first", "second")] == [1, 1]
    stdout, _ = invoke("merge", "runs", "first", "second")
    assert stdout == "runs: 2 new runs, 0 replaced by a longer record, 0 already there\n"
    stdout, _ = invoke(*CUT, "--method", "fedavg", "--shard", "2/2", "--plan")
    assert stdout.startswith("table 1: 1 of 2 runs needed (shard 2/2), 1 done")
    assert "2 runs needed, 2 done" in invoke(*CUT, "--method", "fedavg", "--plan")[0]


def test_a_shard_without_runs_is_no_mistake() -> None:
    stdout, _ = invoke(*CUT, "--method", "fedavg", "--shard", "1/5")
    assert stdout == "table 1: 0 of 2 runs needed (shard 1/5), 0 done, 0 partly done, 0 missing\n"


@pytest.mark.parametrize("width", [None, 48, 80])
def test_a_table_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    """The terminal's width decides; elsewhere there is one layout, with every column."""
    for want in Wanted(TABLES[7], seeds=[0], rounds=200, precision="fp32").runs:
        if want.settings["method.lam"] != 1.5:
            made_run(Path("runs"), want, [0.5] * 200)
    if width:
        monkeypatch.setattr(display, "console", Console(highlight=False, force_terminal=True, width=width))
    arguments = ["table", "7", "--from", "runs", "--markdown", "t.md", "--csv", "t.csv"]
    monkeypatch.setattr(sys, "argv", ["somewhere/fedacd", *arguments])
    stdout, _ = invoke(*arguments)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stdout).splitlines()
    heads = [line.split() for line in lines if "lambda  " in line]
    note = "Not shown, as there is no run of ours: lambda 1.5. Files have all columns."
    if width:
        assert max(map(len, lines)) <= width
        assert heads == ([["lambda", "0.5", "1"], ["lambda", "2"]] if width == 48 else [["lambda", "0.5", "1", "2"]])
        assert note in " ".join(map(str.strip, lines))
    else:
        assert heads == [["lambda", "0.5", "1", "1.5", "2"]]
        assert "Not shown" not in stdout
    assert "| 1.5 |" in Path("t.md").read_text()
    assert Path("t.md").read_text().endswith(f"\nMade by\n\n    fedacd {' '.join(arguments)}\n")
    assert len(Path("t.csv").read_text().splitlines()) == 5


def test_a_failure_does_not_stop_the_rest() -> None:
    cut = [*CUT, "--method", "fedavg"]
    invoke(*cut)
    broken, sound = sorted(Path("runs").iterdir())
    (broken / ROUNDS).write_text(read_first_line(broken))  # the checkpoint knows of two rounds
    (sound / ROUNDS).unlink()
    (sound / STATE).unlink()
    stdout, stderr = invoke(*cut, code=1)
    assert stderr.startswith("error: digits-fedavg-beta0.1-")
    assert "is damaged" in stderr
    assert "1 of 2 runs are not finished and left out." in stdout


def test_a_damaged_checkpoint_does_not_stop_the_rest() -> None:
    cut = [*CUT, "--method", "fedavg"]
    invoke(*cut)
    broken, sound = sorted(Path("runs").iterdir())
    (broken / STATE).write_bytes(b"not a checkpoint")
    for run in (broken, sound):
        (run / ROUNDS).write_text(read_first_line(run))
    (sound / STATE).unlink()
    _, stderr = invoke(*cut, code=1)
    assert stderr.startswith("error: digits-fedavg-beta0.1-")
    assert f"{broken / STATE} is damaged or cut short" in stderr
    assert stderr.count("\n") == 1
    assert len(read_rounds(sound)) == 2


def read_first_line(run: Path) -> str:
    return (run / ROUNDS).read_text().splitlines(keepends=True)[0]


def test_the_plan_estimates_time(wanted: Wanted) -> None:
    run = made_run(Path("runs"), wanted.runs[0], [0.1, 0.2])
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:02:00+00:00")
    stdout, _ = invoke(*CUT, "--plan")
    assert stdout == "table 1: 4 runs needed, 1 done, 0 partly done, 3 missing; about 6 minutes on slow cpu\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.6, "1 second"),
        (99, "99 seconds"),
        (100, "2 minutes"),
        (2886, "48 minutes"),
        (64800, "18 hours"),
        (1e6, "12 days"),
    ],
)
def test_an_estimate_in_words(seconds: float, words: str) -> None:
    assert display.in_words(seconds) == words


def test_the_plan_estimates_time_from_summaries_and_names_their_device(wanted: Wanted) -> None:
    run = made_run(Path("made"), wanted.runs[0], [0.1, 0.2], {"run.device": "cuda:0"})
    made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:02:00+00:00", "quick GPU")
    invoke("summaries", "results", "made")
    four = ["table", "1", "--rounds", "2", "--seeds", "1", "--plan", "--from", "results"]
    begins = "table 1: 4 runs needed, 1 done, 0 partly done, 3 missing; "
    assert invoke(*four, "--device", "cuda")[0] == begins + "about 9 seconds on quick GPU\n"  # 1.5 seconds a round
    assert invoke(*four, "--device", "cpu")[0] == begins + "no estimate of time: no run like these is recorded on cpu\n"
    if not torch.cuda.is_available():
        assert invoke(*four)[0] == begins + "about 9 seconds on quick GPU (none is recorded on cpu)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["10"], "table '10': must be a whole number from 1 to 9."),
        (["x"], "table 'x': must be a whole number from 1 to 9."),
        (["1", "--dataset", "cifar11"], "unknown data set of table 1 'cifar11'. Known: digits."),
        (
            ["2", "--dataset", "cifar11"],
            "unknown data set of table 2 'cifar11'. Did you mean 'cifar10'? Known: cifar10",
        ),
        (["1", "--method", "fedacdd"], "unknown method of table 1 'fedacdd'. Did you mean 'fedacd'?"),
        (["1", "--method", "fedacd,"], "method = 'fedacd,': must be a list"),
        (["1", "--beta", "0.5"], "unknown beta of table 1 '0.5'."),
        (["1", "--beta", "much"], "beta = 'much': must be a list of numbers"),
        (["1", "--seeds", "0"], "seeds = '0': must be how many, from 1 to 1000, or a list"),
        (["1", "--seeds", "a"], "seeds = 'a': must be how many"),
        (["1", "--seeds", "1,1"], "seeds = '1,1': a seed is named twice."),
        (["1", "--seeds", "4294967296,"], "run.seed = 4294967296: must be a whole number"),
        (["1", "--rounds", "0"], "train.rounds = 0: must be a whole number at least 1."),
        (["1", "--rounds", "many"], "train.rounds = 'many': must be a whole number at least 1."),
        (["1", "--precision", "half"], "run.precision = 'half': must be one of fp32, tf32, bf16."),
        (["1", "--precision", ""], "run.precision = '': must be one of fp32, tf32, bf16."),
        (["1", "--shard", "0/5"], "shard = '0/5': must be k/m, with k from 1 to m, such as 2/5."),
        (["1", "--shard", "6/5"], "shard = '6/5': must be k/m"),
        (["1", "--shard", "x"], "shard = 'x': must be k/m"),
        (["1", "--shard", "1/2", "--from", "."], "shard = '1/2': goes with training, not with --from."),
        (["1", "--out", "o", "--from", "."], "out = 'o': goes with training, not with --from."),
        (["1", "--csv", "t", "--json", "./t"], "json = 't': is the file of --csv as well; give each its own."),
        (["1", "--json", "nowhere/t.json"], "json = 'nowhere/t.json': must be a file in a folder that exists"),
        (["1", "--plan", "--json", "t.json"], "json = 't.json': is for the table, which --plan does not make."),
        (["1", "--from", "nowhere"], "cannot read nowhere: No such file or directory."),
        (["1", "--from", "."], ". holds no fedacd runs and no summaries of runs."),
        (["1", "--device", "tpu"], "run.device = 'tpu': must be cpu, cuda, cuda:N or auto."),
        (["1", "--plan", "--device", "foo"], "run.device = 'foo': must be cpu, cuda, cuda:N or auto."),
        (["1", "--plan", "--device", "cuda:x"], "run.device = 'cuda:x': must be cpu, cuda, cuda:N or auto."),
        (["2"], "the data set 'cifar10' is not here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(arguments: list[str], message: str) -> None:
    _, stderr = invoke("table", *arguments, code=2)
    assert stderr.startswith(f"error: {message}"), stderr
    assert stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_a_folder_that_cannot_be_written_is_one_message_whatever_the_number_of_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("file").touch()
    _, stderr = invoke(*CUT, "--out", "file/runs", code=2)
    assert stderr.startswith("error: cannot write file/runs: Not a directory.")
    assert stderr.count("\n") == 1
    monkeypatch.setattr(os, "access", lambda *_: False)
    _, stderr = invoke(*CUT, code=2)
    assert stderr.startswith("error: cannot write runs: Permission denied.")


def test_bad_input_of_merge_and_summaries() -> None:
    for command in ("merge", "summaries"):
        _, stderr = invoke(command, "all", "nowhere", code=2)
        assert stderr == "error: cannot read nowhere: No such file or directory.\n"


def test_other_data_than_those_of_the_runs_are_refused(wanted: Wanted) -> None:
    made_run(Path("runs"), wanted.runs[0], [0.1, 0.2])
    _, stderr = invoke(*CUT, code=2)
    assert "was trained on another digits: data.fingerprint is 'abc' there" in stderr


def test_the_plan_of_the_largest_table_is_quick(tmp_path: Path) -> None:
    """All 270 runs of table 2, two thirds of them done; the start of Python and torch apart."""
    runs = Wanted(TABLES[2], seeds=[0, 1, 2], rounds=200, precision="fp32").runs
    for want in runs[:180]:
        run = made_run(tmp_path / "runs", want, [0.5] * 200)
        made_session(run, "2026-01-01T00:00:00+00:00", "2026-01-01T00:10:00+00:00")
    started = time.process_time()
    stdout, _ = invoke("table", "2", "--plan")
    assert time.process_time() - started < 1
    assert "270 runs needed, 180 done, 0 partly done, 90 missing; " in stdout


def test_it_runs_without_a_terminal_or_a_home(tmp_path: Path) -> None:
    script = "import typer; from fedacd.tables.command import table; typer.run(table)"
    command = [sys.executable, "-c", script, "7", "--plan"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert found.stdout.startswith("table 7: 12 runs needed")
