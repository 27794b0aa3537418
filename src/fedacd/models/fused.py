"""A model's `Conv2d, ReLU, MaxPool2d(2)` as one operation where a GPU has a kernel for it. Elsewhere the ReLU comes
last: the same bits, with a quarter of the numbers to go through.

On a GPU a `Flatten, Linear` that follows them takes their output as it lies in memory."""

import copy
import functools
import importlib.util
import itertools
import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

MOST_NUMBERS = 2**30
"""In an input of the kernels, whose offsets have 32 bits: half of what these reach, for pixels of padding."""


class ConvReluPool(nn.Conv2d):
    """The three modules in one, with the convolution's parameters under its name."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = _dtype(x)
        B, _, H, W = x.shape
        if dtype is None or B * H * W * (self.in_channels + 15) > MOST_NUMBERS:  # 15: the most channels of padding
            return F.relu(F.max_pool2d(super().forward(x), 2))
        from fedacd.models import kernels

        assert self.bias is not None
        assert not isinstance(self.padding, str)
        (kh, kw), (top, left) = self.kernel_size, self.padding
        channels = -self.in_channels % (4 if self.in_channels <= 4 else 16)  # for runs of memory that are read at once
        x = F.pad(x.to(dtype).movedim(1, -1), (0, channels, left, left, top, top))
        w = F.pad(self.weight.to(dtype).movedim(1, -1), (0, channels)).flatten(1)
        given = (x[None].contiguous(), w[None].contiguous(), self.bias.to(dtype)[None], kh, kw)
        if torch.is_grad_enabled():
            out, _ = kernels.ConvReluPool.apply(*given)  # type: ignore[no-untyped-call]
        else:
            out, _ = kernels.conv_relu_pool(*given, False)
        pooled: Tensor = out[0].movedim(-1, 1)
        return pooled


class FlatLinear(nn.Linear):
    """`Flatten, Linear` in one. Pixels whose channels lie side by side, as the kernels leave them, stay there without a
    gradient: a test set is far larger than the weights, which are turned instead."""

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.movedim(1, -1)
        if torch.is_grad_enabled() or not pixels.is_contiguous():
            return super().forward(x.flatten(1))
        turned = self.weight.reshape(-1, *x.shape[1:]).movedim(1, -1)
        return F.linear(pixels.flatten(1), turned.flatten(1), self.bias)


def _dtype(x: Tensor) -> torch.dtype | None:
    """In which the kernels compute, if they can: they have no full float32."""
    if not x.is_cuda or not _has_kernels(x.device):
        return None
    if torch.is_autocast_enabled("cuda"):
        return torch.bfloat16
    return torch.float32 if torch.backends.cuda.matmul.fp32_precision == "tf32" else None


@functools.cache
def _has_kernels(device: torch.device) -> bool:
    """With Triton, on A100, H100, H200 and B200: others have less memory for a block than the kernels take."""
    large = ((8, 0), (9, 0), (10, 0), (10, 3))
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability(device) in large


def fused(module: nn.Module, example: Tensor, *, flatten: bool = True) -> nn.Module:
    """A copy of `module` with the modules in one wherever they follow each other in an nn.Sequential; with
    `flatten` also a `Flatten, Linear` behind them. Layers with hooks stay as they are.

    A module that uses them in another way shows it by other outputs for `example`, or by none, in training or in
    evaluation, with these parameters or others: then fewer are in one.
    """
    plain = copy.deepcopy(module)
    for flat in (True, False) if flatten else (False,):
        other = _in_one(module, flatten=flat)
        if _same(other, plain, example):
            return other.train(module.training)
    return plain.train(module.training)


def _in_one(module: nn.Module, *, flatten: bool) -> nn.Module:
    other = copy.deepcopy(module)
    for block in [child for child in other.modules() if type(child) is nn.Sequential]:
        for number in range(len(block) - 2):
            conv, relu, pool = three = [block[number + after] for after in range(3)]
            if _fits(conv) and type(relu) is nn.ReLU and _halves(pool) and not any(map(is_watched, three)):
                conv.__class__ = ConvReluPool
                block[number + 1], block[number + 2] = nn.Identity(), nn.Identity()
                if flatten:
                    _flatten_late(block, number + 3)
    return other


@torch.enable_grad()  # without a gradient a layer may sum in another order
def _same(other: nn.Module, plain: nn.Module, example: Tensor) -> bool:
    if not any(isinstance(child, ConvReluPool) for child in other.modules()):
        return True
    generator = torch.Generator("cpu").manual_seed(0)
    start = {name: p.detach() for name, p in plain.named_parameters() if p.requires_grad}
    try:
        noise = {
            name: torch.randn(p.shape, generator=generator, device="cpu", dtype=p.dtype) / math.prod(p.shape[1:]) ** 0.5
            for name, p in start.items()
        }
        # Also beside the initial parameters, on both sides: a gate hides a use if it starts at zero. Not far from them:
        # what must be positive may stay so.
        for step, training in itertools.product((0, 0.1, -0.1), (False, True)):
            params = {name: p + step * noise[name] for name, p in start.items()}
            mine, theirs = (outputs(module.train(training), params, example) for module in (other, plain))
            if not torch.equal(mine, theirs):
                return False
    except Exception:  # whatever a user's module makes of a shape or a number it does not know
        return False
    return True


def outputs(module: nn.Module, params: dict[str, Tensor], x: Tensor) -> Any:
    """With these parameters. Draws are the same in every call; those of others stay as they are, and so does `x`."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            return functional_call(module, params, (x.clone(),))
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _flatten_late(block: nn.Sequential, number: int) -> None:
    two = list(block)[number : number + 2]
    if len(two) == 2 and _flattens(two[0]) and type(two[1]) is nn.Linear and not any(map(is_watched, two)):
        block[number], two[1].__class__ = nn.Identity(), FlatLinear


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def is_watched(module: nn.Module) -> bool:
    """Whether somebody has asked to see what goes through it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _fits(conv: nn.Module) -> bool:
    return (
        type(conv) is nn.Conv2d
        and conv.bias is not None
        and conv.out_channels % 16 == 0
        and (conv.stride, conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        and not isinstance(conv.padding, str)
    )


def _halves(pool: nn.Module) -> bool:
    return (
        type(pool) is nn.MaxPool2d
        and all(size in (2, (2, 2)) for size in (pool.kernel_size, pool.stride))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not (pool.ceil_mode or pool.return_indices)
    )
