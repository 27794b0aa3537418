"""FedAvg and FedACD as a plain PyTorch loop: one client after the other, as a good user would write it.

This is what `fedacd bench` measures the engine against, so it shares none of the engine's code. Images are uint8 on the
device, cropped, flipped and normalised there a batch at a time; nothing in a step waits for the device.

Shapes: N samples, B batch, C classes.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of local training."""

    method: str = "fedavg"
    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    clip: float = 10.0
    crop: int = 4
    flip: bool = True
    mixup: bool = False


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training images and labels on the device; mean and standard deviation of each channel."""

    images: Tensor
    """[N, channels, H, W] uint8"""
    labels: Tensor
    """[N]"""
    mean: Tensor
    std: Tensor
    num_classes: int

    def normalise(self, x: Tensor) -> Tensor:
        return (x / 255 - self.mean[:, None, None]) / self.std[:, None, None]


def augment(x: Tensor, crop: int, flip: bool) -> Tensor:
    """A random crop of every image after padding with black, and a random horizontal flip."""
    B, channels, H, W = x.shape
    device = x.device
    if crop:
        top, left = torch.randint(0, 2 * crop + 1, (2, B, 1), device=device)
        rows = (top + torch.arange(H, device=device))[:, None, :, None]
        columns = (left + torch.arange(W, device=device))[:, None, None, :]
        image = torch.arange(B, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        x = F.pad(x, (crop, crop, crop, crop))[image, channel, rows, columns]
    if flip:
        mirrored = torch.rand(B, device=device) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    return x


def batches(data: Data, index: Tensor, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Every epoch in a new order; the short last batch is kept."""
    for _ in range(recipe.epochs):
        order = index[torch.randperm(len(index), device=index.device)]
        for batch in torch.split(order, recipe.batch_size):
            yield data.normalise(augment(data.images[batch], recipe.crop, recipe.flip)), data.labels[batch]


class ClassOutputs:
    """FedACD's matrix P of some samples: mean outputs by true class, as sums and numbers."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.seen = torch.zeros(num_classes, device=device)
        self.sums = torch.zeros(num_classes, num_classes, device=device)

    def add(self, logits: Tensor, y: Tensor) -> None:
        true = F.one_hot(y, len(self.seen)).to(logits.dtype)
        self.sums += true.T @ logits.detach().softmax(1)
        self.seen += true.sum(0)

    @property
    def P(self) -> Tensor:
        return self.sums / self.seen.where(self.seen > 0, 1)[:, None]

    def log_ratio(self) -> Tensor:
        """[C, C] of log(P_yi / P_iy), and log(1e-3) for a class i without samples."""
        log_P = self.P.clamp(min=1e-8).log()
        ratio = (log_P - log_P.T).clamp(-10, 10)
        return ratio.where(self.seen > 0, math.log(1e-3)).fill_diagonal_(0)

    def score(self) -> Tensor:
        """V = sigmoid(1 / KL(P || Q)), the mean over the rows of classes with samples."""
        C, tau = len(self.seen), 1 - 1e-5
        Q = torch.full_like(self.sums, (1 - tau) / (C - 1)).fill_diagonal_(tau)
        P, held = self.P, (self.seen > 0).float()
        rows = (torch.xlogy(P, P) - P * Q.log()).sum(1)
        return torch.sigmoid(1 / ((rows * held).sum() / held.sum()).clamp(min=1e-8))


def fedacd_loss(logits: Tensor, y: Tensor) -> Tensor:
    """L1 + L2 of a batch, both of outputs p shifted by its own P. L1 = KL(p || q), q_y = p_y, the rest of q even."""
    outputs = ClassOutputs(logits.shape[1], logits.device)
    outputs.add(logits, y)
    logits = logits + outputs.log_ratio()[y]
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, y[:, None], False)
    log_p = logits.log_softmax(1)
    log_rest = log_p.masked_fill(~others, -math.inf).logsumexp(1, keepdim=True)
    log_q = log_rest - math.log(logits.shape[1] - 1)
    flatness = (log_p.exp() * (log_p - log_q) * others).sum(1).mean()
    return flatness + F.cross_entropy(logits, y)


def train_client(model: nn.Module, data: Data, index: Tensor, recipe: Recipe, lr: float) -> Tensor:
    """Train a model on a client's samples, in place, and return the client's weight in the average."""
    optimizer = torch.optim.SGD(model.parameters(), lr, recipe.momentum, weight_decay=recipe.weight_decay)
    loss_of = fedacd_loss if recipe.method == "fedacd" else F.cross_entropy
    model.train()
    for x, y in batches(data, index, recipe):
        if recipe.mixup:
            lam, partner = float(np.random.beta(0.5, 0.5)), torch.randperm(len(y), device=y.device)
            logits = model(lam * x + (1 - lam) * x[partner])
            loss = lam * loss_of(logits, y) + (1 - lam) * loss_of(logits, y[partner])
        else:
            loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
    return score(model, data, index) if recipe.method == "fedacd" else torch.ones((), device=index.device)


@torch.no_grad()
def score(model: nn.Module, data: Data, index: Tensor) -> Tensor:
    """V of a trained client, from a clean pass over its samples."""
    outputs = ClassOutputs(data.num_classes, index.device)
    model.eval()
    for batch in torch.split(index, 500):
        outputs.add(model(data.normalise(data.images[batch])), data.labels[batch])
    return outputs.score()


def federated_round(model: nn.Module, data: Data, cohort: Sequence[Tensor], recipe: Recipe, lr: float) -> None:
    """Train a copy of the global model on every client of the round and take their weighted average."""
    states, weights = [], []
    for index in cohort:
        local = copy.deepcopy(model)
        weights.append(train_client(local, data, index, recipe, lr))
        states.append(local.state_dict())
    share = torch.stack(weights) / torch.stack(weights).sum()
    average = {
        name: sum((w * state[name] for w, state in zip(share, states, strict=True)), torch.zeros_like(value))
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(average)
