"""Versions and hardware, so that a number can be traced to what made it; and the processes of a run."""

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def environment(device: torch.device) -> dict[str, Any]:
    """What env.json says of a session."""
    from fedacd import __version__

    return {
        "fedacd": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
    }


def rank_and_size() -> tuple[int, int]:
    """Which of how many processes this is, where torchrun has started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def end_with_parent() -> None:
    """Let this process be killed when its parent ends, however that ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _commit() -> str | None:
    """The commit that the code is of, where it is used from its own repository."""
    repository = Path(__file__).parents[2]
    if not (repository / ".git").exists():
        return None
    with contextlib.suppress(OSError):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
        found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    return None
