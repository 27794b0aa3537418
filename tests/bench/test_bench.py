"""The bench as a person meets it: refusals, the table, and one true run in tiny."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from fedacd import bench
from fedacd.bench import command, engines, job, machine, worker
from fedacd.bench.contestants import by_process, contestants
from fedacd.bench.engines import train_together
from fedacd.bench.job import Job
from fedacd.bench.measure import Measured, Turn
from fedacd.bench.show import about, notes, show
from fedacd.bench.workload import WORKLOADS, Workload, cohorts, find, load, setups
from fedacd.cli_exits import reporting
from fedacd.engine.setup import Setup
from fedacd.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDACD_DATA", str(tmp_path / "data"))


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "not_idle", lambda *_, **__: [])


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, idle: None) -> list[Job]:
    """The jobs that would be run, each of which takes a second."""
    seen: list[Job] = []

    def pretend(what: Job, command: list[str]) -> list[Turn]:
        seen.append(what)
        samples = [500 if name == "plain" else 1500 for name in what.contestants]
        return [Measured(samples=number, seconds=1, rounds=what.rounds, real_data=False) for number in samples]

    monkeypatch.setattr(job, "run_apart", pretend)
    return seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds = 0: must be a whole number at least 1."),
        ({"repeats": -1}, "repeats = -1: must be a whole number at least 1."),
        ({"device": "tpu"}, "run.device = 'tpu': must be cpu, cuda, cuda:N or auto."),
        ({"workloads": ["papre"]}, "unknown workload 'papre'. Did you mean 'paper'?"),
        ({"only": ["engine-fp8"]}, "unknown contestant 'engine-fp8'. Did you mean 'engine-fp32'?"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bench.run(**{"device": "cpu", **options})
    assert str(caught.value).startswith(message)


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    bench.check_file(tmp_path / "bench.json")
    for path in (tmp_path / "nowhere" / "bench.json", tmp_path):
        with pytest.raises(ConfigError, match="must be a file in a folder that exists"):
            bench.check_file(path)


def test_turns_and_rounds(jobs: list[Job]) -> None:
    only = ["plain", "engine-fp32"]
    report = bench.run(device="cpu", rounds=8, repeats=2, only=only)
    assert [what.contestants for what in jobs] == [[name] for name in only] * 2
    assert [what.rounds for what in jobs] == [3, 8] * 2
    (table,) = report.tables
    assert table.rows[1].ratios == {"plain": 3.0}
    assert table.rows[1].full_run_seconds == pytest.approx(200 * 10 * 500 * 5 / 1500)
    text = list(notes(table, report))
    assert "Timed after a warm-up, the plain loop over 3 rounds and the others over 8 rounds, and extrapolated to " \
           "200 rounds." in text  # fmt: skip


def test_a_contestant_of_one_workload_alone(jobs: list[Job]) -> None:
    report = bench.run(device="cpu", repeats=1, workloads=["federation", "paper"], only=["engine-fp32-eval"])
    assert [table.workload for table in report.tables] == ["paper"]


def test_packages_that_are_missing_are_named(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = bench.run(device="cpu", repeats=1)
    assert [what.contestants for what in jobs] == [["plain"], ["engine-fp32"], ["engine-bf16"]]
    assert report.tables[0].left_out == [
        f"{name} is not installed (pip install 'fedacd[bench]')." for name in ("pfl", "Flower")
    ]
    with pytest.raises(ConfigError, match=r"only = 'pfl': it is not installed \(pip install 'fedacd\[bench\]'\)"):
        bench.run(only=["pfl"], quick=True)


def test_a_busy_machine_is_named(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(machine, "not_idle", lambda *_, **__: ["other processes take 55 % of the CPU"])
    report = bench.run(device="cpu", repeats=2, only=["plain"], say=said.append)
    assert "The machine is NOT idle, at the start: other processes take 55 % of the CPU." in said
    expected = "at the start: other processes take 55 % of the CPU; before turn 2: other processes take 55 % of the CPU"
    assert f"The machine was NOT idle, so these numbers cannot be trusted: {expected}." in list(about(report))


def test_the_cpu_share_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([(100, 1000), (180, 1200)])
    monkeypatch.setattr(machine, "_cpu_times", lambda: next(times))
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 0.0, 0.0))
    signs = machine.not_idle(torch.device("cpu"), first=False, seconds=0)
    assert signs == ["other processes take 40 % of the CPU"]


def test_contestants_by_device() -> None:
    federation, paper = find("federation", device="cuda"), find("paper", device="cuda")
    assert [*contestants(federation, "cpu")] == ["plain", "engine-fp32", "engine-bf16", "pfl", "flower"]
    assert [*contestants(paper, "cuda")] == [
        "plain", "plain-tf32", "engine-fp32", "engine-fp32-eval", "engine-tf32", "engine-tf32-eval", "engine-bf16",
        "engine-bf16-eval",
    ]  # fmt: skip
    assert len(paper.runs) == 9 and len(find("paper", device="cpu").runs) == 1
    assert paper.samples_a_round == 100_000 and federation.samples_a_round == 25_000


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_key(name: str, quick: bool) -> None:
    """By which the loops of other packages keep what they have loaded; those packages may not be here."""
    assert {find(name, device="cpu", quick=quick): 1}[find(name, device="cpu", quick=quick)] == 1


def test_numbers_of_clients_are_compared_method_by_method(jobs: list[Job]) -> None:
    report = bench.run(device="cpu", workloads=["growth"], repeats=1)
    names = ["fedacd-20", "fedacd-1000", "scaffold-20", "scaffold-1000"]
    assert [(what.contestants, what.rounds) for what in jobs] == [([name], 8) for name in names]
    (table,) = report.tables
    assert table.baselines == ["fedacd-20", "scaffold-20"]
    assert table.samples_of_a_full_run == 200 * 10 * 50 * 5
    assert "Timed after a warm-up, all over 8 rounds, and extrapolated to 200 rounds." in list(notes(table, report))


@pytest.mark.parametrize(("contestant", "clients"), [("fedacd-4", 4), ("scaffold-16", 16)])
def test_a_growing_federation_in_tiny(contestant: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Setup] = []

    def watched(runs: Sequence[Setup], told: Any) -> None:
        seen.extend(runs)
        train_together(runs, told)

    monkeypatch.setattr(engines, "train_together", watched)
    (found,) = worker.run(Job(contestants=[contestant], workload="growth", rounds=1, device="cpu", quick=True))
    assert found.samples == 2 * 8
    (run,) = seen
    assert [len(part) for part in run.members] == [8] * clients
    assert len(set(np.concatenate(run.members))) == 8 * clients
    assert run.config.method.name == contestant.partition("-")[0]
    assert run.config.run.save_every == run.config.train.rounds


def test_on_a_gpu_two_numbers_of_clients_share_a_process() -> None:
    growth, federation = find("growth", device="cuda"), find("federation", device="cuda")

    def names(work: Workload, device: str) -> list[list[str]]:
        return [[one.name for one in group] for group in by_process([*contestants(work, device).values()], device)]

    assert names(growth, "cuda") == [["fedacd-20", "fedacd-1000"], ["scaffold-20", "scaffold-1000"]]
    assert names(growth, "cpu") == [["fedacd-20"], ["fedacd-1000"], ["scaffold-20"], ["scaffold-1000"]]
    assert all(len(group) == 1 for group in names(federation, "cuda"))


def test_two_contestants_in_one_process(idle: None) -> None:
    what = Job(contestants=["scaffold-16", "scaffold-4"], workload="growth", rounds=1, device="cpu", quick=True)
    found = job.run_apart(what, job.command())
    assert [turn.samples for turn in found if isinstance(turn, Measured)] == [2 * 8] * 2


def test_what_was_measured_before_a_failure_is_kept() -> None:
    what = Job(contestants=["fedacd-20", "fedacd-1000"], workload="growth", rounds=1, device="cpu")
    one = Measured(samples=2, seconds=1, rounds=1, real_data=False)
    line = json.dumps(dataclasses.asdict(one))
    script = f"print({line!r}, flush=True); raise MemoryError('too large')"
    assert job.run_apart(what, [sys.executable, "-c", script]) == [one, "MemoryError: too large"]


def test_real_data_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    work = dataclasses.replace(find("federation", device="cpu"), num_train=40, num_test=5)
    made, real = load(work)
    assert (real, made.x_train.shape, made.x_test.shape) == (False, (40, 32, 32, 3), (5, 32, 32, 3))
    there = dataclasses.replace(made, x_train=made.x_train[::-1].copy())
    monkeypatch.setattr("fedacd.data.load", lambda name: there if name == "cifar10" else pytest.fail(name))
    found, real = load(work)
    assert real and (found.x_train == there.x_train).all() and found.num_classes == 10


def test_the_plain_loop_sees_the_clients_of_the_runs_in_turn() -> None:
    work = find("paper", device="cpu", quick=True)
    runs = setups(work, load(work)[0], {"run.device": "cpu"})
    rounds = cohorts(runs, 3, torch.device("cpu"))
    assert [len(cohort) for cohort in rounds] == [2, 2, 2]
    for run, cohort in zip([*runs, runs[0]], rounds, strict=True):
        members = [set(part.tolist()) for part in run.members]
        assert all(set(index.tolist()) in members for index in cohort)


def test_a_run_that_fails_ends_the_turn() -> None:
    work = find("federation", device="cpu", quick=True)
    (run,) = setups(work, load(work)[0], {"run.device": "cpu", "train.rounds": 1, "train.lr": 1e30})
    with pytest.raises(Exception, match=r"smaller train\.lr"):
        train_together([run], lambda *_: None)


@pytest.mark.parametrize("contestant", ["plain", "engine-fp32-eval"])
def test_the_paper_in_tiny(contestant: str) -> None:
    (found,) = worker.run(Job(contestants=[contestant], workload="paper", rounds=1, device="cpu", quick=True))
    assert found.samples > 0 and found.seconds > 0 and found.rounds == 1
    assert found.peak_memory and found.peak_memory > 10_000_000


def test_why_a_process_failed(tmp_path: Path) -> None:
    what = Job(contestants=["plain"], workload="federation", rounds=1, device="cpu", quick=True)
    script = "import sys; print('noise', file=sys.stderr); raise MemoryError('too large')"
    assert job.run_apart(what, [sys.executable, "-c", script]) == ["MemoryError: too large"]
    assert job.run_apart(what, [sys.executable, "-c", ""]) == ["no result"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("seconds", [0, 3])
def test_a_bench_that_is_stopped_leaves_nothing_behind(seconds: int, tmp_path: Path) -> None:
    """Neither the process that it has just started, nor one at work and its files."""
    words = [sys.executable, "-m", "fedacd", "bench", "--device", "cpu", "--only", "engine-fp32"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=quiet, stderr=quiet, env=os.environ | {"TMPDIR": str(temporary)}) as command:
        try:
            children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
            deadline = time.monotonic() + 60
            while not (found := children.read_text().split()) and time.monotonic() < deadline:
                pass
            (worker,) = found
            time.sleep(seconds)
            assert [*temporary.iterdir()]
            command.terminate()
            assert command.wait(20) == 130
        finally:
            command.kill()
    while _is_at_work(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_at_work(worker)
    assert not [*temporary.iterdir()]


def _is_at_work(process: str) -> bool:
    """And not ended, or a zombie that nobody has looked at."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_line(jobs: list[Job], tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reporting()(command.bench))
    arguments = ["--only", "plain, engine-bf16", "--device", "cpu", "--repeats", "1", "--json", "bench.json"]
    for _ in range(2):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert "fedacd, bf16" in done.stdout and "3.00" in done.stdout
    assert json.loads((tmp_path / "bench.json").read_text())["repeats"] == 1
    for wrong in (["--rounds", "0"], ["--json", "no/where.json"], ["--only", ""]):
        refused = CliRunner().invoke(app, ["--device", "cpu", *wrong])
        assert refused.exit_code == 2
        assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1


def test_a_contestant_that_fails_is_named_and_the_exit_code_tells(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "run_apart", lambda *_: ["MemoryError: too large"])
    app = typer.Typer()
    app.command()(command.bench)
    done = CliRunner().invoke(app, ["--device", "cpu", "--only", "engine-fp32"])
    assert done.exit_code == 1
    assert "engine-fp32 failed: MemoryError: too large" in done.stdout


def test_a_quick_bench(tmp_path: Path, idle: None, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["plain", "engine-fp32", "engine-bf16"]
    report = bench.run(device="cpu", quick=True, only=names)
    assert report.failed == []
    (table,) = report.tables
    assert [row.name for row in table.rows] == names
    assert all(row.rate and row.ratios["plain"] > 0 and row.peak_memory for row in table.rows)
    assert not table.real_data
    bench.write_json(report, tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == dataclasses.asdict(report)
    show(report)
    shown = capsys.readouterr().out
    for text in ("x plain", "fedacd, bf16", "random images", "QUICK", "extrapolated to 200 rounds"):
        assert text in shown
