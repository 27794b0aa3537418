"""What the bench runs on, and whether anybody else is at work there."""

import contextlib
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedacd.engine.setup import cores
from fedacd.environment import environment

BUSY_SHARE = 0.1
"""Of the machine's CPU time, or of a GPU's: more than this by others is not idle."""


def describe(device: torch.device) -> dict[str, Any]:
    """Hardware and versions."""
    date = datetime.now(UTC).date().isoformat()
    return environment(device) | {"date": date, "cores": cores(), "cpu": _cpu_name(), "cpu_bf16": _has_bf16()}


def not_idle(device: torch.device, *, first: bool = True, seconds: float = 1.0) -> list[str]:
    """Signs that the machine is at work for others, in words; looked for while the bench itself does nothing.

    The load average looks back over a minute, so it tells something only before the first contestant.
    """
    signs = []
    with contextlib.suppress(OSError):
        load, all_cores = os.getloadavg()[0], os.cpu_count() or 1
        if first and load > max(0.5, BUSY_SHARE * all_cores):
            signs.append(f"the load average of the last minute is {load:.1f} on {all_cores} cores")
    share = _cpu_share(seconds)
    if share is not None and share > BUSY_SHARE:
        signs.append(f"other processes take {100 * share:.0f} % of the CPU")
    if device.type == "cuda":
        signs += _gpu_signs(device.index or 0)
    return signs


def _cpu_share(seconds: float) -> float | None:
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _cpu_times() -> tuple[int, int] | None:
    """Busy and total time of all cores since the start of the machine, from /proc/stat."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guest time is part of user time
    values = [int(value) for value in line.split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def _gpu_signs(index: int) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    used = int(answer) if answer.isdigit() else 0
    return [f"the GPU is {used} % in use"] if used > 100 * BUSY_SHARE else []


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that torch has held on a GPU, or that this process has held in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        # Unlike getrusage it starts afresh with the program, whatever the process that started it had held.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_memory_of_children() -> int:
    """Bytes that the largest process started by this one, and ended, has held in memory."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _cpu_info(*keys: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in keys:
                return value.strip()
    return ""


def _cpu_name() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _has_bf16() -> bool:
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(_cpu_info("flags", "Features").split()))
