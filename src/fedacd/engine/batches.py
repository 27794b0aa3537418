"""From a client's plan to the batches of its steps: gathered, augmented, normalised and mixed on the device.

Shapes: N samples, H x W pixels, S steps, B batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedacd.engine.plan import LocalPlan


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images and labels on a device, and what turns pixels into a network's input."""

    pixels: Tensor
    """[N, H, W, channels] uint8"""
    labels: Tensor
    """[N]"""
    mean: Tensor
    std: Tensor
    crop: int = 0

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.pixels, self.labels, self.mean, self.std

    def of(self, *tensors: Tensor) -> "Images":
        """The same kind of images from other tensors."""
        pixels, labels, mean, std = tensors
        return replace(self, pixels=pixels, labels=labels, mean=mean, std=std)

    def clean(self, index: Tensor) -> Tensor:
        """Normalised images [B, channels, H, W]."""
        return self._normalise(self.pixels[index])

    def ready(self, index: Tensor) -> "Images":
        """Some of them, normalised once and for all."""
        pixels = self.clean(index).movedim(-3, -1).contiguous()
        return Ready(pixels=pixels, labels=self.labels[index], mean=self.mean, std=self.std)

    def augmented(self, index: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
        """Cropped from black padding at `shift` [B, 2], mirrored where `flip` [B], then normalised."""
        pixels, pad = self.pixels[index], self.crop
        B, H, W, _ = pixels.shape
        padded = F.pad(pixels, (0, 0, pad, pad, pad, pad)) if pad else pixels
        across = torch.arange(W, device=pixels.device)
        rows = torch.arange(H, device=pixels.device) + shift[:, :1]
        columns = torch.where(flip[:, None], W - 1 - across, across) + shift[:, 1:]
        batch = torch.arange(B, device=pixels.device)[:, None, None]
        return self._normalise(padded[batch, rows[:, :, None], columns[:, None, :]])

    def _normalise(self, pixels: Tensor) -> Tensor:
        return ((pixels / 255 - self.mean) / self.std).movedim(-1, -3)


class Ready(Images):
    """Images that are normalised already, and asked for in their order; `pixels` are float32."""

    def clean(self, index: Tensor) -> Tensor:
        return self._normalise(self.pixels if len(index) == len(self.pixels) else self.pixels[index])

    def _normalise(self, pixels: Tensor) -> Tensor:
        return pixels.movedim(-1, -3)


class Batch(NamedTuple):
    """Images of one step. Mixed ones are lam of label `y`, 1 - lam of `y2`."""

    x: Tensor
    y: Tensor
    w: Tensor
    y2: Tensor | None = None
    lam: Tensor | None = None


def mixed(batch: Batch, of: Callable[[Tensor], Tensor]) -> Tensor:
    """lam * of(y) + (1 - lam) * of(y2): how mixup enters a loss or a target, for every method alike."""
    if batch.y2 is None or batch.lam is None:
        return of(batch.y)
    return batch.lam * of(batch.y) + (1 - batch.lam) * of(batch.y2)


class Draws(NamedTuple):
    """A plan on the device, for one client; [S, ...] for all of its steps."""

    samples: Tensor
    """[B] among the images"""
    shift: Tensor
    flip: Tensor
    lam: Tensor
    partner: Tensor
    size: Tensor
    """[] real samples, which come first; the rest is padding."""


def draws_of(plan: LocalPlan, members: Tensor) -> Draws:
    """`members` are the client's samples among the images."""
    drawn = (plan.order, plan.shift, plan.flip, plan.lam.astype("float32"), plan.partner, plan.size)
    host = (torch.from_numpy(values) for values in drawn)
    if members.is_cuda:  # only a copy from pinned memory leaves the host free to go on
        host = (values.pin_memory() for values in host)
    order, *rest = (values.to(members.device, non_blocking=True) for values in host)
    return Draws(members[order], *rest)


def steps_of(images: Images, draws: Draws, kind: str) -> Iterator[list[Batch]]:
    """What a plan's steps train on, without padding."""
    for number, size in enumerate(draws.size.tolist()):
        samples, shift, flip, lam, partner, real = (value[number] for value in draws)
        yield one_step(images, Draws(samples[:size], shift[:size], flip[:size], lam, partner[:size], real), kind)


def one_step(images: Images, draws: Draws, kind: str) -> list[Batch]:
    """The batch of a step, augmented: its `own` images, `mixed` ones, or `both`; padded where the draws are."""
    samples, shift, flip, lam, partner, size = draws
    x, y = images.augmented(samples, shift, flip), images.labels[samples]
    w = (torch.arange(len(samples), device=samples.device) < size).to(x.dtype)
    parts = []
    if kind in ("own", "both"):
        parts.append(Batch(x, y, w))
    if kind in ("mixed", "both"):
        parts.append(Batch(lam * x + (1 - lam) * x[partner], y, w, y[partner], lam))
    return parts
