"""A turn in a process of its own, so that threads, memory peaks and CUDA's state do not leak.

It is one contestant's, or that of several, which then share what makes one process faster than another.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from fedacd.bench.measure import Measured, Turn

LIMIT = 3600
"""Seconds after which a turn is given up."""

PARENT = "FEDACD_BENCH_PARENT"
"""In the environment of a turn's process: the process for which it works."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the process is told."""

    contestants: Sequence[str]
    """One after the other."""
    workload: str
    rounds: int
    """To be timed."""
    device: str
    quick: bool = False
    profile: str | None = None
    """A file for the time of every kernel of a GPU, of the engine's turns."""


def run_apart(job: Job, command: list[str]) -> list[Turn]:
    """Run a turn in a new process and read the result of every contestant, or the reason why there is none.

    Threads are left to torch, as for a user who set nothing (in a quick job, to whoever set something); Flower's and
    ray's reports to their makers are off.
    """
    environment = {key: value for key, value in os.environ.items() if job.quick or not key.endswith("_NUM_THREADS")}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="fedacd-bench-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(job))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a process leaves that was killed goes with the folder; but for ray, whose sockets want short names.
            env={"RAY_TMPDIR": tempfile.gettempdir(), **environment, "TMPDIR": folder, PARENT: str(os.getpid())},
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return [f"given up after {LIMIT} seconds"] * len(job.contestants)
        finally:
            _end(process)
    found: list[Turn] = []
    with contextlib.suppress(ValueError):
        for line in stdout.splitlines():
            found.append(Measured(**json.loads(line)))
    lines = [line for line in stderr.splitlines() if line.strip()]
    why = next((line for line in reversed(lines) if "Error" in line), (lines or ["no result"])[-1]).strip()
    return found + [why] * (len(job.contestants) - len(found))


def _end(process: "subprocess.Popen[str]") -> None:
    """End whatever is left of the process and of those that it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def command(processes: int = 1) -> list[str]:
    """Python, or torchrun for several processes."""
    if processes == 1:
        return [sys.executable, "-m", "fedacd.bench.worker"]
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *launch, "-m", "fedacd.bench.worker"]
