"""A function of tensors, made to be called again and again on a GPU: traced, compiled, captured as a CUDA graph."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedacd.engine.trees import leaves, refilled

# Programs are compiled once for this and later starts. torch sets its own folder when it first needs one.
_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_HOME / "fedacd" / "compiled"))


def program(function: Callable[..., None], *arguments: Any, say: Callable[[str], None]) -> Callable[[], None]:
    """`function(*arguments)`: trees of tensors, to some of which it writes. It is called a few times here.

    On a CPU as it is. Where it cannot be compiled it is captured as it is, and `say` is told.
    """
    flat = leaves(arguments)
    if not flat[0].is_cuda:
        return lambda: function(*arguments)

    def run(*flat: Tensor) -> None:
        function(*refilled(arguments, flat))

    compiled = _compiled(run, flat, say)
    graph = _captured(lambda: compiled(*flat))

    def again(_: object = (flat, compiled)) -> None:  # a graph does not keep the tensors it works on, nor its constants
        graph.replay()

    return again


@contextlib.contextmanager
def aside(read: Any) -> Iterator[None]:
    """A second queue of a GPU for what training does not wait for, behind everything that was asked so far.

    `read`: a tree of the tensors from outside that are read there, whose memory is not given away before.
    """
    tensors = leaves(read)
    if not tensors[0].is_cuda:
        yield
        return
    stream = _second(tensors[0].device)
    stream.wait_stream(torch.cuda.current_stream(tensors[0].device))
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(stream)
    with torch.cuda.stream(stream):
        yield


def copy_all(held: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy tensors into others, by as few operations as there are types of them."""
    for dtype in {tensor.dtype for tensor in held}:
        pairs = [pair for pair in zip(held, new, strict=True) if pair[0].dtype == dtype]
        torch._foreach_copy_([into for into, _ in pairs], [of for _, of in pairs])


def _compiled(run: Callable[..., None], flat: list[Tensor], say: Callable[[str], None]) -> Callable[..., None]:
    # Traced by its operations, not by its Python code, so that any method and model will do.
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            compiled: Any = torch.compile(make_fx(run)(*flat), fullgraph=True, dynamic=False)
            compiled(*flat)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        say(f"torch.compile failed, going on without it; slower. {type(error).__name__}: {error}")
        return run
    return compiled  # type: ignore[no-any-return]


@functools.cache
def _second(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@functools.cache
def _home(device: torch.device, queue: int) -> tuple[torch.cuda.Stream, Any]:
    """For the programs of one queue, of which one runs at a time: a stream to capture them on and a pool of memory.

    Libraries keep scratch memory for every stream. None of the programs leaves anything there, nor in the pool.
    """
    return torch.cuda.Stream(device), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]


def _captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    queue = torch.cuda.current_stream()
    side, pool = _home(queue.device, queue.cuda_stream)
    side.wait_stream(queue)
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            run()
    queue.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side), torch.no_grad():
        run()
    return graph
