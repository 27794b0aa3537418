"""One local step of ONE client, pure; and a whole client's round, one step after the other.

Shapes: N samples, H x W pixels, B batch, C classes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedacd.config import Train
from fedacd.engine.plan import LocalPlan
from fedacd.methods import Client, Did, Method, Reply, Shared, Tensors, Trained
from fedacd.methods.common import cross_entropy, is_class, weighted_mean
from fedacd.metrics import tally
from fedacd.models.net import Net

CLEAN_BATCH = 500
"""Samples in one batch of a pass without gradients."""


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

    def clean(self, index: Tensor) -> Tensor:
        """Normalised images [B, channels, H, W]."""
        return self._normalise(self.pixels[index])

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


class Batch(NamedTuple):
    """The input of one step. With mixup `x` is mixed already: lam of label `y`, 1 - lam of `y2`."""

    x: Tensor
    y: Tensor
    y2: Tensor
    lam: Tensor
    w: Tensor


class Hyper(NamedTuple):
    """Settings of local SGD; scalar tensors, so that they may differ from client to client."""

    lr: Tensor
    momentum: Tensor
    weight_decay: Tensor
    clip: Tensor
    """Infinite: no limit."""


def mixed(batch: Batch, mixup: bool, of: Callable[[Tensor], Tensor]) -> Tensor:
    """lam * of(y) + (1 - lam) * of(y2): how mixup enters a loss or a target, for every method alike."""
    return batch.lam * of(batch.y) + (1 - batch.lam) * of(batch.y2) if mixup else of(batch.y)


Objective = Callable[[Trained], tuple[Tensor, Tensors]]


def gradient_under_vmap(objective: Objective, now: Trained) -> tuple[Trained, Tensors]:
    """Gradient and outputs of an objective, in a form that can be stacked over clients."""
    gradient, out = torch.func.grad(objective, has_aux=True)(now)
    return gradient, out


def gradient_of_one(objective: Objective, now: Trained) -> tuple[Trained, Tensors]:
    """The same for a client on its own: autograd without the transform's cost for every operation."""
    leaves = Trained(*({name: w.detach().requires_grad_() for name, w in group.items()} for group in now))
    with torch.enable_grad():
        loss, out = objective(leaves)
    flat = [w for group in leaves for w in group.values()]
    found = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
    gradient = Trained(*({name: next(found) for name in group} for group in leaves))
    return gradient, {name: value.detach() for name, value in out.items()}


def step(
    net: Net,
    method: Method,
    now: Trained,
    velocity: Trained,
    client: Client,
    shared: Shared,
    batch: Batch,
    did: Did,
    hyper: Hyper,
    mixup: bool,
    gradient_of: Callable[[Objective, Trained], tuple[Trained, Tensors]] = gradient_of_one,
) -> tuple[Trained, Trained, Client, Tensor]:
    """One step of SGD: weights, velocity, client, and the cross entropy of the batch before it."""

    def objective(now: Trained) -> tuple[Tensor, Tensors]:
        out = method.outputs(net, now, shared, client, batch.x)
        return mixed(batch, mixup, lambda y: method.loss(out, y, batch.w, now, shared, client)), out

    gradient, out = gradient_of(objective, now)
    logits = out["logits"]
    target = mixed(batch, mixup, lambda y: is_class(y, logits.shape[-1]).to(logits.dtype))
    client = method.observe(out, target, batch.w, client, did)
    loss = mixed(batch, mixup, lambda y: weighted_mean(cross_entropy(logits, y), batch.w))
    moves = [sgd(*group, hyper) for group in zip(now, gradient, velocity, strict=True)]
    return Trained(*(w for w, _ in moves)), Trained(*(v for _, v in moves)), client, loss


def sgd(weights: Tensors, gradient: Tensors, velocity: Tensors, hyper: Hyper) -> tuple[Tensors, Tensors]:
    """Clip the norm of the gradient, add weight decay, then SGD with momentum. New weights and velocity."""
    if not weights:
        return {}, {}
    # Summed in float64, so that the order of tensors and their layout in memory do not show.
    norm = torch.stack([g.square().sum(dtype=torch.float64) for g in gradient.values()]).sum().sqrt()
    scale = (hyper.clip / (norm + 1e-6)).clamp(max=1).to(hyper.lr.dtype)
    velocity = {
        name: hyper.momentum * velocity[name] + scale * gradient[name] + hyper.weight_decay * w
        for name, w in weights.items()
    }
    return {name: w - hyper.lr * velocity[name] for name, w in weights.items()}, velocity


def add(total: Tensors, more: Tensors) -> Tensors:
    return {name: total[name] + value if name in total else value for name, value in more.items()}


@torch.no_grad()
def tally_of(forward: Callable[[Tensor], Tensor], images: Images) -> Tensors:
    """`metrics.tally` of a model over clean images."""
    counts: Tensors = {}
    for index in torch.split(torch.arange(len(images.labels), device=images.labels.device), CLEAN_BATCH):
        counts = add(counts, tally(forward(images.clean(index)), images.labels[index]))
    return counts


@torch.no_grad()
def survey(
    net: Net, method: Method, now: Trained, shared: Shared, client: Client, images: Images, members: Tensor, when: str
) -> tuple[Client, Tensors]:
    """A clean pass over the client's own data, for what the method asks for; at the end also for a tally."""
    sums: Tensors = {}
    counts: Tensors = {}
    for index in torch.split(members, CLEAN_BATCH):
        x, y = images.clean(index), images.labels[index]
        out = method.outputs(net, now, shared, client, x)
        target = is_class(y, len(client.counts)).to(x.dtype)
        if when in method.survey_at:
            sums = add(sums, method.survey(out, target, torch.ones_like(y, dtype=x.dtype), client))
        if when == "end":
            counts = add(counts, tally(out["logits"], y))
    return (method.absorb(client, sums, when) if when in method.survey_at else client), counts


class Outcome(NamedTuple):
    """What a client's round leaves behind."""

    reply: Reply
    client: Client
    train_loss: Tensor
    """Mean cross entropy over the round's samples, as they were trained on."""
    tally: Tensors
    """`metrics.tally` of the local model on the client's own data; may be empty where it was not asked for."""


def run_client(
    net: Net,
    method: Method,
    shared: Shared,
    client: Client,
    images: Images,
    members: Tensor,
    plan: LocalPlan,
    train: Train,
    lr: float,
    *,
    measure: bool,
) -> Outcome:
    """A client's whole round; `members` are its samples among `images`. Only its steps run in training mode."""

    def scalar(value: float | None) -> Tensor:
        return torch.tensor(value, dtype=torch.float32, device=members.device)

    hyper = Hyper(scalar(lr), scalar(train.momentum), scalar(train.weight_decay), scalar(train.clip or math.inf))
    did = Did(scalar(len(members)), scalar(plan.steps), scalar(plan.epoch_steps), hyper.lr, hyper.momentum)
    now = Trained(shared.params, client.private)
    velocity = Trained(*({name: torch.zeros_like(w) for name, w in group.items()} for group in now))
    client = method.begin(shared, client)
    net.train(False)
    if "start" in method.survey_at:
        client, _ = survey(net, method, now, shared, client, images, members, "start")
    net.train(True)
    loss_sum = scalar(0)
    for number, batch in enumerate(batches(images, members, plan, bool(train.mixup))):
        if "epoch" in method.survey_at and number % plan.epoch_steps == 0:
            net.train(False)
            client, _ = survey(net, method, now, shared, client, images, members, "epoch")
            net.train(True)
        now, velocity, client, loss = step(
            net, method, now, velocity, client, shared, batch, did, hyper, bool(train.mixup)
        )
        loss_sum = loss_sum + loss * len(batch.y)
    net.train(False)
    counts: Tensors = {}
    if measure or "end" in method.survey_at:
        client, counts = survey(net, method, now, shared, client, images, members, "end")
    client, extra, told = method.finish(now, shared, client, did)
    reply = Reply(now.params, extra, told)
    return Outcome(reply, client._replace(private=now.private), loss_sum / int(plan.size.sum()), counts)


def batches(images: Images, members: Tensor, plan: LocalPlan, mixup: bool) -> Iterator[Batch]:
    """The batches of a plan, augmented and mixed, without padding."""
    draws = (plan.order, plan.shift, plan.flip, plan.lam.astype("float32"), plan.partner)
    order, shift, flip, lam, partner = (torch.from_numpy(values).to(members.device) for values in draws)
    for number, size in enumerate(plan.size.tolist()):
        index = members[order[number, :size]]
        x, y = images.augmented(index, shift[number, :size], flip[number, :size]), images.labels[index]
        y2 = y
        if mixup:
            with_whom = partner[number, :size]
            x, y2 = lam[number] * x + (1 - lam[number]) * x[with_whom], y[with_whom]
        yield Batch(x, y, y2, lam[number], torch.ones_like(y, dtype=x.dtype))
