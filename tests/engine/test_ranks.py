"""Runs over several processes as a person starts them: --workers, torchrun, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedacd.cli import app
from fedacd.records import finished_rounds, read_config, read_rounds
from tests.engine.test_slots import assert_same_records
from tests.engine.test_spread import SOON, _nobody_is_left_behind, assert_same_tensors, children  # noqa: F401

OPTIONS = ["--clients", "5", "--participation", "1", "--epochs", "1", "--device", "cpu", "--method", "scaffold"]
RUN = ["run", "--dataset", "digits", *OPTIONS, "--set", "run.save_every=1"]
FEDACD = [sys.executable, "-m", "fedacd"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedacd"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}

needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: no two workers")


def start(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=ONE_THREAD, stdout=pipe, stderr=pipe, text=True)


def ended(command: list[str], folder: Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        env=ONE_THREAD,
        capture_output=True,
        text=True,
        check=check,
        timeout=None if check else SOON,
    )


def wait_for_rounds(out: Path, count: int, process: "subprocess.Popen[str]") -> None:
    while len(read_rounds(out)) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@needs_two_cores
def test_a_killed_worker_on_the_command_line(tmp_path: Path) -> None:
    process = start([*FEDACD, *RUN, "--rounds", "300", "--workers", "2", "--out", "here"], tmp_path)
    wait_for_rounds(tmp_path / "here", 2, process)
    (child,) = children(process.pid)
    os.kill(child, signal.SIGKILL)
    _, stderr = process.communicate(timeout=SOON)
    assert process.returncode == 1
    assert stderr.startswith("error: a worker process of this run has died")
    assert stderr.count("\n") == 1
    done = finished_rounds(tmp_path / "here") or 0
    assert 2 <= done == len(read_rounds(tmp_path / "here")) < 300


@needs_two_cores
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "a closed terminal"])
def test_ctrl_c_on_the_command_line_ends_all_processes(by: signal.Signals, tmp_path: Path) -> None:
    """A terminal sends it to all of them; here to a worker, which must not mind, and then to the first alone."""
    process = start([*FEDACD, *RUN, "--rounds", "300", "--workers", "2", "--out", "here"], tmp_path)
    wait_for_rounds(tmp_path / "here", 1, process)
    (child,) = children(process.pid)
    os.kill(child, signal.SIGINT)
    done = len(read_rounds(tmp_path / "here"))
    wait_for_rounds(tmp_path / "here", done + 2, process)
    process.send_signal(by)
    _, stderr = process.communicate(timeout=SOON)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "The same command goes on from there" in stderr
    assert not Path(f"/proc/{child}").exists()
    # It may come between a round's line and its state; the line is then made again.
    assert len(read_rounds(tmp_path / "here")) - (finished_rounds(tmp_path / "here") or 0) in (0, 1)


@needs_two_cores
def test_workers_end_with_a_first_process_that_is_killed(tmp_path: Path) -> None:
    process = start([*FEDACD, *RUN, "--rounds", "300", "--workers", "2", "--out", "here"], tmp_path)
    wait_for_rounds(tmp_path / "here", 1, process)
    (child,) = children(process.pid)
    process.kill()
    process.communicate()
    until = time.monotonic() + 10
    while alive(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(child)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_torchrun_equals_one_process_and_speaks_with_one_voice(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = tmp_path_factory.mktemp("plain") / "here"
    assert (
        CliRunner()
        .invoke(app, [*RUN, "--rounds", "4", "--workers", "1", "--set", "run.threads=1", "--out", str(plain)])
        .exit_code
        == 0
    )
    result = ended([*TORCHRUN, *RUN, "--rounds", "4", "--out", "here"], tmp_path)
    assert_same_records(read_rounds(tmp_path / "here"), read_rounds(plain), rel=1e-6)
    assert_same_tensors(tmp_path / "here" / "state.safetensors", plain / "state.safetensors")
    lines = result.stdout.splitlines()
    assert sum("round 2/4" in line for line in lines) == 1
    assert lines.count("Run folder: here") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert {path.name for path in (tmp_path / "here").iterdir()} == {path.name for path in plain.iterdir()}
    assert read_config(tmp_path / "here").identity() == read_config(plain).identity()


def test_a_killed_rank_of_torchrun_ends_all_and_a_plain_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start([*TORCHRUN, *RUN, "--rounds", "30", "--out", "here"], tmp_path)
    wait_for_rounds(tmp_path / "here", 2, process)
    os.kill(rank_of(process.pid, 1), signal.SIGKILL)
    _, stderr = process.communicate(timeout=SOON)
    assert process.returncode == 1
    # Whichever comes first to rank 0: the closed connection, or torchrun.
    assert "a worker process of this run has died" in stderr or "another rank of it has died" in stderr
    done = finished_rounds(tmp_path / "here") or 0
    assert 1 <= done < 30
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(app, [*RUN, "--rounds", "30", "--workers", "1", "--out", "here"])
    assert again.exit_code == 0, again.output
    assert f"here has {done} of 30 rounds" in again.stdout
    assert [record["round"] for record in read_rounds(tmp_path / "here")] == list(range(1, 31))


def test_ranks_that_differ_are_refused(tmp_path: Path) -> None:
    (tmp_path / "differ.py").write_text(
        "import os, sys\n"
        "from fedacd.cli import app\n"
        "app([*sys.argv[1:], '--lr', '0.0' + os.environ['LOCAL_RANK'] + '1'])\n"
    )
    command = [*TORCHRUN[:-2], "differ.py", *RUN, "--rounds", "2", "--out", "here"]
    result = subprocess.run(
        command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert result.returncode == 1
    assert "error: the processes of this run differ in settings or data" in result.stderr
    assert not read_rounds(tmp_path / "here")


def test_a_reason_that_one_rank_of_torchrun_alone_knows_is_told_and_all_end(tmp_path: Path) -> None:
    """The first of two runs: the other rank must not go on with the second and wait for this one."""
    (tmp_path / "refusing.py").write_text(
        "from fedacd.errors import UpdateError\n"
        "from fedacd.environment import rank_and_size\n"
        "from fedacd.methods import FedAvg\n"
        "class Refusing(FedAvg):\n"
        "    def finish(self, *of):\n"
        "        if rank_and_size()[0] == 1:\n"
        "            raise UpdateError('not to my liking')\n"
        "        return super().finish(*of)\n"
    )
    options = ["--dataset", "digits", *OPTIONS[:-2], "--method", "refusing:Refusing", "--rounds", "2"]
    command = [*TORCHRUN, "sweep", *options, "--seed", "0,1", "--out", "here"]
    result = subprocess.run(
        command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert result.returncode == 1
    assert "error: not to my liking" in result.stderr


def rank_of(parent: int, rank: int) -> int:
    for child in children(parent):
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return child
    raise AssertionError(f"no rank {rank}")
