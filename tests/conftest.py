"""What all tests share: real, small data, and hypothesis without a stopwatch."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedacd.data import Dataset, load

# A deadline would time the machine, not the code; a fixed order makes a failure repeatable.
settings.register_profile("fedacd", deadline=None, derandomize=True)
settings.load_profile("fedacd")

# Without a GPU, kernels run in Triton's interpreter. Triton looks once, when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Started in the background a process ignores Ctrl-C, under nohup a closed terminal, and so would those that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The sizes are tiny: more threads would only compete, and with them the numbers of a sum change in the last bit.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture
def real_cifar100() -> Dataset:
    """The real CIFAR-100, where FEDACD_DATA has it."""
    root = os.environ.get("FEDACD_DATA")
    if not root:
        pytest.skip("FEDACD_DATA is not set: no real CIFAR-100 at hand")
    if not (Path(root) / "cifar100.npz").exists() and not (Path(root) / "cifar100").exists():
        pytest.skip(f"{root} has no cifar100")
    return load("cifar100")


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)
