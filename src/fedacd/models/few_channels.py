"""Convolution, ReLU and max-pooling of images, whose few channels make a window small enough to be read at once.

All four pixels of a window lie under one patch of (KH + 1) x (KW + 1) pixels. It is read once and multiplied with
every weight at its four places, 4 N columns with zeros between: one large product in place of four small ones. A
program keeps those columns and goes from tile to tile, BW windows at a time.

Shapes as in `kernels`; a patch has KH + 1 rows of J + C numbers, its taps. MAIN of them, a power of two, are multiplied
first and then the REST.
"""

import functools

import torch
import triton
from torch import Tensor
from triton import language as tl

MOST_TAPS = 160
"""For 64 channels their weights, four times and in bf16, take 80 KiB: two programs on a multiprocessor."""


@triton.jit
def _patch_kernel(
    x, w, bias, out, pixel, windows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, J: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, EACH: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    x += k * (windows // (PH * PW)) * (H * W * C)
    w += k * (N * KH * J)
    tap = tl.arange(0, MAIN)
    main_at, main_w = _offsets(tap, W, C, J), _columns(w, tap, C, N, KH, J, BN)
    if REST:
        more = MAIN + tl.arange(0, REST)
        rest_at = _offsets(tl.where(more < (KH + 1) * (J + C), more, 0), W, C, J)
        rest_w = _columns(w, more, C, N, KH, J, BN)
    of_bias = tl.load(bias + k * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    number = tl.broadcast_to(tl.arange(0, 4)[None, :, None], (BW, 4, BN))
    window = tl.program_id(0) * BW + tl.arange(0, BW)
    patch = _corner(x, window, windows, H, W, C, PH, PW)
    main = tl.load(patch + main_at[None, :])
    if REST:
        rest = tl.load(patch + rest_at[None, :])
    for _ in range(EACH):
        # The next tile's patches are on their way while this one's are multiplied.
        after = window + tl.num_programs(0) * BW
        patch = _corner(x, after, windows, H, W, C, PH, PW)
        next_main = tl.load(patch + main_at[None, :])
        if REST:
            next_rest = tl.load(patch + rest_at[None, :])
        total = tl.dot(main, main_w)
        main = next_main
        if REST:
            total = tl.dot(rest, rest_w, total)
            rest = next_rest
        where = (k * windows + window[:, None]) * N + n[None, :]
        inside = (window[:, None] < windows) & (n[None, :] < N)
        pixels = total.reshape(BW, 4, BN)
        if KEEP:
            largest, which = tl.reduce((pixels, number), 1, _larger)
        else:
            largest = tl.reduce(pixels, 1, _largest)
        value = largest + of_bias
        is_dead = value <= 0
        tl.store(out + where, tl.where(is_dead, 0.0, value).to(out.dtype.element_ty), mask=inside)
        if KEEP:
            tl.store(pixel + where, tl.where(is_dead, 4, which).to(tl.uint8), mask=inside)
        window = after


@triton.jit
def _corner(
    x, window, windows, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr
):  # fmt: skip
    """[windows, 1]: the first number of each one's patch."""
    real = tl.minimum(window, windows - 1)
    b, in_image = real // (PH * PW), real % (PH * PW)
    return x + (((b * H + 2 * (in_image // PW)) * W + 2 * (in_image % PW)) * C)[:, None]


@triton.jit
def _offsets(tap, W: tl.constexpr, C: tl.constexpr, J: tl.constexpr):
    """From a patch's corner to its numbers; C is 4, so that four of them follow each other."""
    return tl.max_contiguous(tl.multiple_of(tap // (J + C) * (W * C) + tap % (J + C), 4), 4)


@triton.jit
def _columns(w, tap, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, J: tl.constexpr, BN: tl.constexpr):
    """[taps, 4 * BN]: for the pixel (y, x) of a window the weights lie y rows and x columns further."""
    column = tl.arange(0, 4 * BN)
    n, y, x = tl.program_id(1) * BN + column % BN, column // BN // 2, column // BN % 2
    row = (tap // (J + C))[:, None] - y[None, :]
    run = (tap % (J + C))[:, None] - x[None, :] * C
    known = (row >= 0) & (row < KH) & (run >= 0) & (run < J) & (n < N)[None, :]
    return tl.load(w + n[None, :] * (KH * J) + row * J + run, mask=known, other=0.0)


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _larger(a, of_a, b, of_b):
    is_b = (b > a) | (b != b)  # what is not a number stays
    return tl.where(is_b, b, a), tl.where(is_b, of_b, of_a)


def is_for(x: Tensor, kh: int, kw: int) -> bool:
    return x.dtype == torch.bfloat16 and x.shape[-1] == 4 and (kh + 1) * (kw + 1) * 4 <= MOST_TAPS


def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor, kh: int, kw: int, out: Tensor, pixel: Tensor) -> None:
    """`kernels.conv_relu_pool` into `out`, and into `pixel` unless it is empty."""
    K, B, H, W, C = x.shape
    PH, PW, N = out.shape[2:]
    taps, windows = (kh + 1) * (kw + 1) * C, B * PH * PW
    main = 1 << (taps.bit_length() - 1)
    rest = max(16, triton.next_power_of_2(taps - main)) if taps > main else 0
    BW, BN = 64, min(64, triton.next_power_of_2(N))
    blocks = triton.cdiv(N, BN)
    tiles = triton.cdiv(windows, BW)
    each = max(1, triton.cdiv(tiles * K * blocks, 2 * _multiprocessors(x.device)))
    _patch_kernel[triton.cdiv(tiles, each), blocks, K](
        x, w, bias, out, pixel, windows, H, W, C, PH, PW, N, kh, kw * C, BW, BN, main, rest, each, pixel.numel() > 0,
        num_warps=4, num_stages=1,
    )  # fmt: skip


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
