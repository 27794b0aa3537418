"""A function of tensors, made to be called again and again on a GPU: traced, compiled, captured as a CUDA graph."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

CHANNELS = 8
"""Tensor cores want channels by the eight."""


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


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        run()
    return graph.replay


# A convolution of K stacked clients is one with K groups. With three channels a group it falls back to K kernels, one
# after the other, which take as long as all the rest of a step; with eight it does not. So zeros pad the channels.


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    extra = -weight.shape[1] % CHANNELS
    if transposed or x.ndim != 4 or not extra:
        return NotImplemented
    x, weight = _widened(x, groups, extra), _widened(weight, 1, extra)
    return aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: list[bool],
) -> Any:  # fmt: skip
    channels = weight.shape[1]
    extra = -channels % CHANNELS
    if transposed or x.ndim != 4 or not extra:
        return NotImplemented
    of_x, of_weight, of_bias = aten.convolution_backward(
        gradient, _widened(x, groups, extra), _widened(weight, 1, extra), bias_sizes, stride, padding, dilation,
        transposed, output_padding, groups, output_mask,
    )  # fmt: skip
    if of_x is not None:
        of_x = of_x.reshape(len(x), groups, channels + extra, *x.shape[2:])[:, :, :channels].reshape(x.shape)
    if of_weight is not None:
        of_weight = of_weight[:, :channels]
    return of_x, of_weight, of_bias


def _widened(x: Tensor, groups: int, extra: int) -> Tensor:
    """[B, groups * channels, H, W] with `extra` channels of zeros in every group."""
    B, _, H, W = x.shape
    return F.pad(x.reshape(B, groups, -1, H, W), (0, 0, 0, 0, 0, extra)).reshape(B, -1, H, W)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
