"""A function of tensors, made to be called again and again on a GPU: traced, compiled, captured as a CUDA graph."""

import functools
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

ALIGNMENT = 8
"""Tensor cores want numbers by the eight."""
PARTS = 8
"""Into which a long sum is cut."""


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
    return _captured(lambda: compiled(*flat))


def _compiled(run: Callable[..., None], flat: list[Tensor], say: Callable[[str], None]) -> Callable[..., None]:
    # Traced by its operations, not by its Python code, so that any method and model will do.
    try:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache()))  # compiled once for this and later starts
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            compiled: Any = torch.compile(make_fx(run, DECOMPOSITIONS)(*flat), fullgraph=True, dynamic=False)
            compiled(*flat)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        say(f"torch.compile failed, going on without it; slower. {type(error).__name__}: {error}")
        return run
    return compiled  # type: ignore[no-any-return]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fedacd" / "compiled"


@functools.cache
def _pool() -> Any:
    """Memory that all programs share: none leaves anything there from one call to the next."""
    return torch.cuda.graph_pool_handle()


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool(), stream=side), torch.no_grad():
        run()
    return graph.replay


# A convolution of K stacked clients is one with K groups. With three channels a group, as images have, cuDNN runs K
# kernels for it, which take as long as all the rest of a step. So it is written out: a gather of the patches under the
# kernel, and matrix products stacked over clients.


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    if not _is_narrow(x, weight, dilation, transposed):
        return NotImplemented
    patches, (B, H, W) = _patches(x, weight, stride, padding, groups)
    out = patches @ _aligned(weight.reshape(groups, len(weight) // groups, -1)).mT
    out = out.reshape(groups, B, H, W, -1).permute(1, 0, 4, 2, 3).reshape(B, len(weight), H, W)
    return out if bias is None else out + bias[:, None, None]


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: list[bool],
) -> Any:  # fmt: skip
    if not _is_narrow(x, weight, dilation, transposed) or output_mask[0]:
        return NotImplemented
    patches, (B, H, W) = _patches(x, weight, stride, padding, groups)
    # The sum over B * H * W is long and its result small: cut into parts, it keeps the whole device busy.
    parts = groups * math.gcd(B, PARTS)
    by_pixel = gradient.reshape(B, groups, -1, H, W).permute(1, 0, 3, 4, 2).reshape(parts, -1, len(weight) // groups)
    of_parts = by_pixel.mT @ patches.reshape(parts, -1, patches.shape[-1])
    wide = torch.promote_types(weight.dtype, torch.float32)
    of_weight = of_parts.reshape(groups, -1, *of_parts.shape[1:]).sum(1, dtype=wide).to(weight.dtype)
    of_weight = of_weight[..., : weight[0].numel()].reshape(weight.shape)
    return None, of_weight, gradient.sum((0, 2, 3)) if output_mask[2] else None


def _is_narrow(x: Tensor, weight: Tensor, dilation: Any, transposed: bool) -> bool:
    return x.ndim == 4 and weight.shape[1] < ALIGNMENT and not transposed and all(step == 1 for step in dilation)


def _patches(x: Tensor, weight: Tensor, stride: Any, padding: Any, groups: int) -> tuple[Tensor, tuple[int, int, int]]:
    """[groups, B * H * W, channels * kernel], H x W being the pixels of the output."""
    (down, right), (top, left) = _pair(stride), _pair(padding)
    x = F.pad(x, (left, left, top, top))
    x = x.reshape(len(x), groups, -1, *x.shape[2:])
    windows = x.unfold(3, weight.shape[2], down).unfold(4, weight.shape[3], right)
    B, _, channels, H, W, *kernel = windows.shape
    patches = windows.permute(1, 0, 3, 4, 2, 5, 6).reshape(groups, B * H * W, channels * math.prod(kernel))
    return _aligned(patches), (B, H, W)


def _pair(values: Any) -> Any:
    return values if len(values) == 2 else [*values, *values]


def _aligned(x: Tensor) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % ALIGNMENT))


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
