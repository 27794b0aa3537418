"""One run over several processes: each rank trains its share of a round's clients, and sums are exchanged.

Every rank holds the same run and ends every round with the same state; rank 0 alone keeps records. Ranks are forks of
one process on a CPU (`forked`), or processes that torchrun has started, on one machine or several, with a GPU each
(`joined`). Only numbers travel: tensors of a known shape, summed or sent to all, never objects.
"""

import contextlib
import gc
import itertools
import os
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fedacd.engine.trees import leaves, mapped, refilled
from fedacd.environment import end_with_parent, rank_and_size
from fedacd.errors import ConfigError, FedacdError, WorkerError

JOINING, PATIENCE = timedelta(seconds=50), timedelta(hours=12)
"""How long a rank waits for the others to come, and then for slower ones. One that has died is noticed at once, since
its connections by gloo close, a machine that has gone within 40 seconds."""


class World:
    """The ranks of a run and what they exchange. With one rank nothing is."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, words: Path | None = None) -> None:
        """`words`: the folder in which forks say what they have failed of."""
        self.rank, self.size, self._group, self._words = rank, size, group, words

    def require_same(self, what: str, number: int) -> None:
        """Refuse to go on, on every rank, unless all of them have the same number, below 2^53."""
        numbers = self.sum(torch.tensor([number * (rank == self.rank) for rank in range(self.size)]))
        if len(set(numbers.tolist())) > 1:
            raise ConfigError(
                f"the processes of this run differ in {what}: start them by one command on the same data."
            )

    def share(self, work: Mapping[int, int]) -> list[int]:
        """This rank's part of numbered work, the largest first: each piece goes to the rank with the least so far."""
        loads, mine = [0] * self.size, []
        for number in sorted(work, key=lambda number: (-work[number], number)):
            rank = loads.index(min(loads))
            loads[rank] += work[number]
            if rank == self.rank:
                mine.append(number)
        return mine

    def sum(self, tree: Any) -> Any:
        """The sum over ranks of every tensor in a tree."""
        return self._exchange(tree, lambda values: dist.all_reduce(values, group=self._group))

    def same(self, tree: Any) -> Any:
        """Rank 0's tree, for everybody."""
        return self._exchange(tree, lambda values: dist.broadcast(values, src=0, group=self._group))

    def gather(self, mine: Mapping[int, Any], everyone: Sequence[int]) -> Any:
        """Trees by number, each known to one rank -> one tree of tensors stacked in the order of `everyone`."""
        nothing = mapped(torch.zeros_like, next(iter(mine.values()))) if self.size > 1 else None
        trees = [mine.get(number, nothing) for number in everyone]
        return self.sum(mapped(lambda *tensors: torch.stack(tensors), *trees))

    def _exchange(self, tree: Any, exchange: Callable[[Tensor], Any]) -> Any:
        if self.size == 1:
            return tree
        tensors = leaves(tree)
        if not tensors:
            return tree
        # In one message, and in float64, which holds float32 and whole numbers exactly.
        values = torch.cat([tensor.double().reshape(-1) for tensor in tensors])
        try:
            exchange(values)
        except RuntimeError as error:
            for word in self._words.glob("rank *") if self._words else ():
                raise WorkerError(f"a worker process of this run has failed: {word.read_text()}") from None
            raise WorkerError(f"a worker process of this run has died ({_first_line(error)}).") from None
        parts = torch.split(values, [tensor.numel() for tensor in tensors])
        shaped = [part.reshape(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]
        return refilled(tree, shaped)


ALONE = World()

_WORLDS = itertools.count()


def can_fork() -> bool:
    """Whether a fork of this process could train: not once autograd has threads for a GPU, nor inside another world."""
    if not hasattr(os, "fork") or dist.is_initialized():
        return False
    child = _quiet_fork()
    if child == 0:
        code = 1
        try:
            torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _quiet_fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads at a fork. These forks print nothing and compute with one thread, as those of torch's
        # DataLoader do.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


@contextlib.contextmanager
def forked(size: int, follow: Callable[[World], None]) -> Iterator[World]:
    """Make this process rank 0 of `size`; the others, forks of it, call `follow` with their world and end.

    What this process has read and built is theirs too, without a copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "ranks"
        children = [_fork(rank, size, meeting, follow) for rank in range(1, size)]
        try:
            with _world(0, size, f"file://{meeting}", words=meeting.parent) as world:
                yield world
        finally:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _fork(rank: int, size: int, meeting: Path, follow: Callable[[World], None]) -> int:
    if child := _quiet_fork():
        return child
    code, word = 1, meeting.with_name(f"rank {rank}")
    try:
        end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, 4096)  # locks, files and connections are the parent's
        gc.freeze()  # and so are its objects: one that is let go here would close what has the same numbers by then
        # OpenMP's pool belongs to a thread and is lost in a fork: the thread that had one may wait for it for ever.
        fresh = ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(1))
        with fresh, _world(rank, size, f"file://{meeting}") as world:
            try:
                fresh.submit(follow, world).result()
            except BaseException as error:
                _leave_word(error, word)  # before the others see the connection close
                raise
        code = 0
    except BaseException as error:
        if not word.exists():
            _leave_word(error, word)
    finally:
        os._exit(code)


def _leave_word(error: BaseException, at: Path) -> None:
    """Say what this process has failed of, unless it is that another one has."""
    if isinstance(error, WorkerError) and not error.__cause__:
        return
    if isinstance(error, FedacdError):
        at.write_text(str(error))
    else:
        at.write_text(f"{type(error).__name__}: {error}")
        traceback.print_exc()


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that torchrun has made of this process and others; one rank without it."""
    rank, size = rank_and_size()
    if size == 1:
        yield ALONE
        return
    on_gpus = device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    with _world(rank, size, "env://", backend) as world, _watching() if on_gpus else contextlib.nullcontext():
        _watch_connections()
        yield world


@contextlib.contextmanager
def _world(rank: int, size: int, address: str, backend: str = "gloo", words: Path | None = None) -> Iterator[World]:
    try:
        store, _, _ = next(rendezvous(address, rank, size, timeout=JOINING))
        store = PrefixStore(f"fedacd-{next(_WORLDS)}", store)  # torchrun's still knows the world before this one
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=JOINING)
        group = dist.new_group(timeout=PATIENCE, backend=backend)
    except RuntimeError as error:
        raise WorkerError(f"a worker process of this run has not come ({_first_line(error)}).") from None
    world = World(rank, size, group, words)
    try:
        yield world
    finally:
        world._group = group = None  # the last holds on its connections
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


@contextlib.contextmanager
def _watching(every: float = 1) -> Iterator[None]:
    """End this process when the connection to another rank breaks: it may be waiting for NCCL, which does not say.

    The ranks meet over gloo once in a while, and stop together when one of them has come to its end.
    """
    group = dist.new_group(timeout=PATIENCE, backend="gloo")
    ending = threading.Event()

    def watch() -> None:
        anyone_ends = torch.zeros(1)
        while not anyone_ends.any():
            anyone_ends.fill_(ending.is_set())
            try:
                dist.all_reduce(anyone_ends, op=dist.ReduceOp.MAX, group=group)
            except RuntimeError as error:
                print(f"error: a process of this run has died ({_first_line(error)}).", file=sys.stderr, flush=True)
                os._exit(1)  # nothing else ends a thread that waits for a GPU; files are whole at any moment
            ending.wait(every)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _watch_connections() -> None:
    """Have the system close connections to a machine that has gone without a word, within 40 seconds.

    Those of gloo are among this process's open files; it has no setting for that. For torchrun's processes, which are
    fedacd's alone: forks are on one machine, and may have been made by a program with connections of its own.
    """
    watch = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 40_000}
    for entry in list(Path("/proc/self/fd").iterdir()) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            if not entry.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as held:
                if held.family in (socket.AF_INET, socket.AF_INET6) and held.type == socket.SOCK_STREAM:
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for option, value in watch.items():
                        held.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
