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
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

# Programs are compiled once for this and later starts. torch sets its own folder when it first needs one.
_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_HOME / "fedacd" / "compiled"))


def program(function: Callable[..., None], *arguments: Any, say: Callable[[str], None]) -> Callable[[], None]:
    """`function(*arguments)`: trees of tensors, to some of which it writes. It is called a few times here.

    On a CPU as it is. Where it cannot be compiled it is captured as it is, and `say` is told.
    """
    flat, spec = tree_flatten(arguments)
    if not flat[0].is_cuda:
        return lambda: function(*arguments)

    def run(*flat: Tensor) -> None:
        function(*tree_unflatten(list(flat), spec))

    compiled = _compiled(run, flat, say)
    graph = _captured(lambda: compiled(*flat))

    def again(_: object = flat) -> None:  # a graph does not keep the tensors it works on
        graph.replay()

    return again


class Aside:
    """A second queue of the device, for what training does not wait for. On a CPU there is none."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    @contextlib.contextmanager
    def __call__(self, read: Any) -> Iterator[None]:
        """To queue work there, behind everything that was asked of the device so far.

        `read`: a tree of the tensors from outside that it reads, whose memory is not given away before.
        """
        tensors = tree_leaves(read)
        if not tensors[0].is_cuda:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensors[0].device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(tensors[0].device))
        for tensor in tensors:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
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
def _pool(queue: int) -> Any:
    """Memory that all programs of a queue share: none leaves anything there from one call to the next."""
    return torch.cuda.graph_pool_handle()


def _captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    pool = _pool(torch.cuda.current_stream().cuda_stream)
    with torch.cuda.graph(graph, pool=pool, stream=side), torch.no_grad():
        run()
    return graph
