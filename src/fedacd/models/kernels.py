"""Convolution, ReLU and max-pooling as one step, for many clients with weights of their own at once, on a GPU.

A convolution of K stacked clients is one with K groups, which cuDNN runs far below the device's speed, and what it
writes is mostly thrown away by the pooling. Here all of `MaxPool2d(2)(ReLU()(Conv2d(...)(x)))` is one kernel which
keeps four sums for the four pixels of a window and writes the largest; another two give the gradients. Layouts are
channels-last, so that the patch under one row of the kernel is one run of memory: KW * C numbers.

Shapes: K clients, B batch, H x W pixels of the padded input with C channels, KH x KW kernel, N output channels,
PH x PW pooled pixels, J = KW * C.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F
from triton import language as tl

from fedacd.models import few_channels

DEAD = 4
"""In place of a window's pixel, 0 to 3, where ReLU lets nothing through."""


@triton.jit
def _forward_kernel(
    x, w, bias, out, pixel, windows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, J: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
    BJ: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    window = tl.program_id(0) * BW + tl.arange(0, BW)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, BJ)
    real = tl.minimum(window, windows - 1)
    b, in_image = real // (PH * PW), real % (PH * PW)
    corner = ((b * H + 2 * (in_image // PW)) * W + 2 * (in_image % PW)) * C
    patch = x + k * (windows // (PH * PW)) * (H * W * C) + corner[:, None]
    weight = w + k * (N * KH * J) + n[None, :] * (KH * J) + j[:, None]
    sum0 = tl.zeros((BW, BN), tl.float32)
    sum1 = tl.zeros((BW, BN), tl.float32)
    sum2 = tl.zeros((BW, BN), tl.float32)
    sum3 = tl.zeros((BW, BN), tl.float32)
    for part in range((KH * J + BJ - 1) // BJ):
        if J % BJ == 0:
            row, run = part // (J // BJ), part % (J // BJ) * BJ
            of_weight = tl.load(weight + (row * J + run), mask=n[None, :] < N, other=0.0)
            at = patch + j[None, :] + (row * W * C + run)
        else:  # across rows; C is a multiple of 4
            tap = part * BJ + j
            known = (n < N)[None, :] & (tap < KH * J)[:, None]
            of_weight = tl.load(weight + part * BJ, mask=known, other=0.0)
            offset = tl.where(tap < KH * J, tap // J * (W * C) + tap % J, 0)
            at = patch + tl.max_contiguous(tl.multiple_of(offset, 4), 4)[None, :]
        sum0 = tl.dot(tl.load(at), of_weight, sum0)
        sum1 = tl.dot(tl.load(at + C), of_weight, sum1)
        sum2 = tl.dot(tl.load(at + W * C), of_weight, sum2)
        sum3 = tl.dot(tl.load(at + W * C + C), of_weight, sum3)
    largest, which = sum0, tl.zeros((BW, BN), tl.int32)
    largest, which = _larger(largest, which, sum1, 1)
    largest, which = _larger(largest, which, sum2, 2)
    largest, which = _larger(largest, which, sum3, 3)
    value = largest + tl.load(bias + k * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    is_dead = value <= 0
    where = (k * windows + window[:, None]) * N + n[None, :]
    inside = (window[:, None] < windows) & (n[None, :] < N)
    tl.store(out + where, tl.where(is_dead, 0.0, value).to(out.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(pixel + where, tl.where(is_dead, 4, which).to(tl.uint8), mask=inside)


@triton.jit
def _larger(largest, which, more, number):
    # What is not a number stays.
    is_larger = (more > largest) | (more != more)
    return tl.where(is_larger, more, largest), tl.where(is_larger, number, which)


@triton.jit
def _convolution_kernel(
    x, w, out, pixels, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    N: tl.constexpr, KH: tl.constexpr, J: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    j = tl.arange(0, BJ)
    real = tl.minimum(m, pixels - 1)
    b, in_image = real // (OH * OW), real % (OH * OW)
    corner = ((b * H + in_image // OW) * W + in_image % OW) * C
    patch = x + k * (pixels // (OH * OW)) * (H * W * C) + corner[:, None] + j[None, :]
    weight = w + k * (N * KH * J) + n[None, :] * (KH * J) + j[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for part in range(KH * (J // BJ)):
        row, run = part // (J // BJ), part % (J // BJ) * BJ
        of_weight = tl.load(weight + (row * J + run), mask=n[None, :] < N, other=0.0)
        total = tl.dot(tl.load(patch + (row * W * C + run)), of_weight, total)
    where = (k * pixels + m[:, None]) * N + n[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=(m[:, None] < pixels) & (n[None, :] < N))


@triton.jit
def _of_weight_kernel(
    x, gradient, pixel, out, windows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, J: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
    BJ: tl.constexpr, PARTS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    part, k = tl.program_id(2) % PARTS, (tl.program_id(2) // PARTS).to(tl.int64)
    x += k * (windows // (PH * PW)) * (H * W * C)
    x += j // J * (W * C) + j % J
    gradient += k * windows * N + n
    pixel += k * windows * N + n
    known = (j < KH * J)[None, :]
    total = tl.zeros((BN, BJ), tl.float32)
    for first in range(0, EACH, BW):
        window = part * EACH + first + tl.arange(0, BW)
        inside = ((window < windows) & (window < (part + 1) * EACH))[:, None] & (n < N)[None, :]
        of_window = tl.load(gradient + window[:, None] * N, mask=inside, other=0.0)
        which = tl.load(pixel + window[:, None] * N, mask=inside, other=4)
        real = tl.minimum(window, windows - 1)
        b, in_image = real // (PH * PW), real % (PH * PW)
        corner = ((b * H + 2 * (in_image // PW)) * W + 2 * (in_image % PW)) * C
        for number in tl.static_range(4):
            at = x + corner[:, None] + (number // 2 * (W * C) + number % 2 * C)
            of_pixel = tl.where(which == number, of_window, 0.0).to(of_window.dtype)
            total = tl.dot(tl.trans(of_pixel), tl.load(at, mask=known, other=0.0), total)
    where = ((k * PARTS + part) * N + n[:, None]) * (KH * J) + j[None, :]
    tl.store(out + where, total, mask=(n < N)[:, None] & known)


# The sizes of blocks below were the fastest on an H200 for the layers of the paper's CNN.


def _run(J: int, most: int) -> int:
    """The longest power of two, up to `most`, that cuts J into equal runs."""
    return min(most, J & -J)


def _parts(windows: int) -> int:
    """Into how many the sum over all windows is cut that a weight's gradient is: a device wants work to spread."""
    return max(2, min(16, windows // 800))


@torch.library.custom_op("fedacd::conv_relu_pool", mutates_args=())
def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor, kh: int, kw: int, keep: bool) -> tuple[Tensor, Tensor]:
    """x [K, B, H, W, C], w [K, N, KH * KW * C], bias [K, N] -> [K, B, PH, PW, N].

    And which pixel of its window it is, where that is to be kept for a gradient; else [K, 0].
    """
    K, B, H, W, C = x.shape
    N = w.shape[1]
    out = _pooled_like(x, w, kh, kw)
    pixel = _pixels_like(out, keep)
    if few_channels.is_for(x, kh, kw):
        few_channels.conv_relu_pool(x, w, bias, kh, kw, out, pixel)
        return out, pixel
    PH, PW = out.shape[2:4]
    windows = B * PH * PW
    BW, BN, BJ = 64, min(64, triton.next_power_of_2(N)), 32 if C == 4 else _run(kw * C, 32)
    _forward_kernel[triton.cdiv(windows, BW), triton.cdiv(N, BN), K](
        x, w, bias, out, pixel, windows, H, W, C, PH, PW, N, kh, kw * C, BW, BN, BJ, keep,
        num_warps=4, num_stages=1 if kh * kw * C <= 4 * BJ else 3,
        maxnreg=168 if x.dtype == torch.bfloat16 else None,  # so that a multiprocessor has room for three blocks
    )  # fmt: skip
    return out, pixel


@torch.library.custom_op("fedacd::stacked_conv", mutates_args=())
def stacked_conv(x: Tensor, w: Tensor, kh: int, kw: int) -> Tensor:
    """x [K, B, H, W, C], w [K, N, KH * KW * C] -> [K, B, H - KH + 1, W - KW + 1, N]."""
    K, B, H, W, C = x.shape
    N = w.shape[1]
    out = x.new_empty(K, B, H - kh + 1, W - kw + 1, N)
    OH, OW = out.shape[2:4]
    pixels = B * OH * OW
    BM, BN = 128, max(16, min(64, triton.next_power_of_2(N)))
    BJ = _run(kw * C, 64 if x.dtype == torch.bfloat16 else 32)
    _convolution_kernel[triton.cdiv(pixels, BM), triton.cdiv(N, BN), K](
        x, w, out, pixels, H, W, C, OH, OW, N, kh, kw * C, BM, BN, BJ, num_warps=4, num_stages=3
    )
    return out


@torch.library.custom_op("fedacd::conv_of_weight", mutates_args=())
def conv_of_weight(x: Tensor, gradient: Tensor, pixel: Tensor, kh: int, kw: int) -> Tensor:
    """The gradient of w in parts [K, parts, N, KH * KW * C], to be added up; float32."""
    K, B, H, W, C = x.shape
    PH, PW, N = gradient.shape[2:]
    J, windows = kw * C, B * PH * PW
    parts = _parts(windows)
    out = x.new_empty(K, parts, N, kh * J, dtype=torch.float32)
    # In tf32 two warps: four would use instructions that want both factors transposed in memory.
    BW, warps = (32, 4) if x.dtype == torch.bfloat16 else (16, 2)
    BN, BJ, each = min(64, triton.next_power_of_2(N)), 128, triton.cdiv(windows, parts)
    _of_weight_kernel[triton.cdiv(kh * J, BJ), triton.cdiv(N, BN), K * parts](
        x, gradient, pixel, out, windows, H, W, C, PH, PW, N, kh, J, BW, BN, BJ, parts, each,
        num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


def _pooled_like(x: Tensor, w: Tensor, kh: int, kw: int) -> Tensor:
    K, B, H, W, _ = x.shape
    return x.new_empty(K, B, (H - kh + 1) // 2, (W - kw + 1) // 2, w.shape[1])


def _pixels_like(out: Tensor, keep: bool) -> Tensor:
    return torch.empty_like(out if keep else out[:, :0, 0, 0, 0], dtype=torch.uint8)


@conv_relu_pool.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor, kh: int, kw: int, keep: bool) -> tuple[Tensor, Tensor]:
    out = _pooled_like(x, w, kh, kw)
    return out, _pixels_like(out, keep)


@stacked_conv.register_fake
def _(x: Tensor, w: Tensor, kh: int, kw: int) -> Tensor:
    K, B, H, W, _ = x.shape
    return x.new_empty(K, B, H - kh + 1, W - kw + 1, w.shape[1])


@conv_of_weight.register_fake
def _(x: Tensor, gradient: Tensor, pixel: Tensor, kh: int, kw: int) -> Tensor:
    _, B, PH, PW, N = gradient.shape
    return x.new_empty(len(x), _parts(B * PH * PW), N, kh * kw * x.shape[-1], dtype=torch.float32)


def _with_vmap(op: Any) -> None:
    """More clients: one more leading axis becomes part of K."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        def merged(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            return value.flatten(0, 1).contiguous()

        def split(value: Tensor) -> Tensor:
            return value.reshape(info.batch_size, len(value) // info.batch_size, *value.shape[1:])

        out = op(*map(merged, args, in_dims))
        return (split(out), 0) if isinstance(out, Tensor) else (tuple(map(split, out)), (0,) * len(out))

    op.register_vmap(rule)


for _op in (conv_relu_pool, stacked_conv, conv_of_weight):
    _with_vmap(_op)


class ConvReluPool(torch.autograd.Function):
    """`conv_relu_pool` with its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor, kh: int, kw: int) -> tuple[Tensor, Tensor]:
        out, pixel = conv_relu_pool(x, w, bias, kh, kw, True)
        return out, pixel

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, bias, ctx.kh, ctx.kw = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, bias, output[1])

    @staticmethod
    @torch.no_grad()  # once is enough
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        x, w, bias, pixel = ctx.saved_tensors
        kh, kw = ctx.kh, ctx.kw
        gradient = gradient.contiguous()
        of_w = conv_of_weight(x, gradient, pixel, kh, kw).sum(1).to(w.dtype)
        alive = torch.where(pixel == DEAD, 0, gradient)
        of_bias = alive.sum((1, 2, 3), dtype=torch.float32).to(bias.dtype)
        if not ctx.needs_input_grad[0]:
            return None, of_w, of_bias, None, None
        H, W, C = x.shape[2:]
        N = w.shape[1]
        turned = w.reshape(-1, N, kh, kw, C).flip(2, 3).permute(0, 4, 2, 3, 1).reshape(-1, C, kh * kw * N)
        spread = _spread(gradient, pixel)
        rest = (W - spread.shape[3], H - spread.shape[2])
        padded = F.pad(spread, (0, 0, kw - 1, rest[0], kh - 1, rest[1]))
        return stacked_conv(padded.contiguous(), turned.contiguous(), kh, kw), of_w, of_bias, None, None


def _spread(gradient: Tensor, pixel: Tensor) -> Tensor:
    """From windows [K, B, PH, PW, N] to their pixels [K, B, 2 PH, 2 PW, N]."""
    K, B, PH, PW, N = gradient.shape
    number = torch.arange(4, device=pixel.device)[:, None]
    of_pixel = torch.where(pixel[..., None, :] == number, gradient[..., None, :], 0)
    return of_pixel.reshape(K, B, PH, PW, 2, 2, N).permute(0, 1, 2, 4, 3, 5, 6).reshape(K, B, 2 * PH, 2 * PW, N)
