"""One local step of ONE client, pure; and a whole client's round, one step after the other."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedacd.config import Train
from fedacd.engine.batches import Batch, Images, draws_of, mixed, steps_of
from fedacd.engine.plan import LocalPlan
from fedacd.engine.trees import mapped, outline
from fedacd.errors import UpdateError
from fedacd.methods import Client, Did, Method, Reply, Shared, Tensors, Trained
from fedacd.methods.common import cross_entropy, is_class
from fedacd.metrics import tally
from fedacd.models.net import Net

TOO_LARGE = "not even one client fits into the device's memory: a smaller train.batch_size or model helps."
CLEAN_BATCH, WIDE_BATCH, WIDEST_BATCH = 500, 2000, 10000
"""Samples in one batch of a pass without gradients; on a GPU; and there, of small images, over a whole test set."""


class Hyper(NamedTuple):
    """Settings of local SGD; scalar tensors, so that they may differ from client to client."""

    lr: Tensor
    momentum: Tensor
    weight_decay: Tensor
    clip: Tensor
    """Infinite: no limit."""


class Fixed(NamedTuple):
    """What the steps of a client's round read."""

    shared: Shared
    did: Did
    hyper: Hyper


class Moving(NamedTuple):
    """What the steps of a client's round change."""

    now: Trained
    velocity: Trained
    client: Client
    loss_sum: Tensor
    """Cross entropy of the samples so far, as they were trained on."""


class Job(NamedTuple):
    """One client's round of training: everything that it depends on."""

    net: Net
    method: Method
    shared: Shared
    client: Client
    images: Images
    members: Tensor
    """The client's samples among the images."""
    test: Tensor
    """The test set's."""
    plan: LocalPlan
    train: Train
    lr: float
    seed: int
    """For torch's own generator, from which only dropout draws."""
    measure: bool


def hyper_parameters(method: Method) -> dict[str, Any]:
    """Its fields, and what else an object of its own keeps."""
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return fields | getattr(method, "__dict__", {})


Objective = Callable[[Trained], tuple[Tensor, list[Tensors]]]


def gradient_under_vmap(objective: Objective, now: Trained) -> tuple[Trained, list[Tensors]]:
    """Gradient and outputs of an objective, in a form that can be stacked over clients."""
    gradient, out = torch.func.grad(objective, has_aux=True)(now)
    return gradient, out


def gradient_of_one(objective: Objective, now: Trained) -> tuple[Trained, list[Tensors]]:
    """The same for a client on its own: autograd without the transform's cost for every operation."""
    leaves = Trained(*({name: w.detach().requires_grad_() for name, w in group.items()} for group in now))
    with torch.enable_grad():
        loss, out = objective(leaves)
    flat = [w for group in leaves for w in group.values()]
    found = iter(torch.autograd.grad(loss, flat, materialize_grads=True))
    gradient = Trained(*({name: next(found) for name in group} for group in leaves))
    return gradient, [{name: value.detach() for name, value in part.items()} for part in out]


def step(
    net: Net,
    method: Method,
    moving: Moving,
    fixed: Fixed,
    parts: Sequence[Batch],
    gradient_of: Callable[[Objective, Trained], tuple[Trained, list[Tensors]]] = gradient_of_one,
) -> Moving:
    """One step of SGD, by the mean of the parts' losses."""
    now, velocity, client, loss_sum = moving
    shared, did, hyper = fixed

    def objective(now: Trained) -> tuple[Tensor, list[Tensors]]:
        def loss_of(part: Batch, out: Tensors) -> Tensor:
            return mixed(part, lambda y: method.loss(out, y, part.w, now, shared, client))

        outs = [method.outputs(net, now, shared, client, part.x) for part in parts]
        return _mean(map(loss_of, parts, outs)), outs

    gradient, outs = gradient_of(objective, now)
    out = {name: _joined([each[name] for each in outs]) for name in outs[0]}
    target = _joined([_target(part, out["logits"]) for part in parts])
    moves = [sgd(*group, hyper) for group in zip(now, gradient, velocity, strict=True)]
    return Moving(
        now=Trained(*(w for w, _ in moves)),
        velocity=Trained(*(v for _, v in moves)),
        client=method.observe(out, target, _joined([part.w for part in parts]), client, did),
        loss_sum=loss_sum + _mean(map(_cross_entropy, parts, outs)),
    )


def _cross_entropy(batch: Batch, out: Tensors) -> Tensor:
    return mixed(batch, lambda y: (cross_entropy(out["logits"], y) * batch.w).sum())


def _target(batch: Batch, logits: Tensor) -> Tensor:
    return mixed(batch, lambda y: is_class(y, logits.shape[-1]).to(logits.dtype))


def _mean(losses: Iterable[Tensor]) -> Tensor:
    first, *others = losses
    return sum(others, start=first) / (1 + len(others)) if others else first


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


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
def tally_of(net: Net, method: Method, shared: Shared, images: Images, samples: Tensor) -> Tensors:
    """`metrics.tally` of the global model over clean images."""
    net.train(False)
    counts: Tensors = {}
    for index in torch.split(samples, WIDE_BATCH if samples.is_cuda else CLEAN_BATCH):
        counts = add(counts, tally(method.predict(net, shared, images.clean(index)), images.labels[index]))
    return counts


TallyOf = Callable[[Net, Method, Shared, Images, Tensor], Tensors]


class Sums(NamedTuple):
    """What a pass over clean images adds up."""

    survey: Tensors
    """What the method asks for."""
    tally: Tensors
    """`metrics.tally` of the local model."""


def clean_batch(job: Job, now: Trained, client: Client, index: Tensor, w: Tensor, surveyed: bool = True) -> Sums:
    """Of one batch; samples of weight 0 are padding. Without a survey where only the tally is asked for."""
    x, y = job.images.clean(index), job.images.labels[index]
    out = job.method.outputs(job.net, now, job.shared, client, x)
    target = is_class(y, len(client.counts)).to(x.dtype)
    return Sums(job.method.survey(out, target, w, client) if surveyed else {}, tally(out["logits"], y, w))


@torch.no_grad()
def clean_pass(job: Job, now: Trained, client: Client, samples: Tensor) -> Sums:
    """The local model over `samples` without augmentation, mixup or dropout."""
    job.net.train(False)
    sums = Sums({}, {})
    for index in torch.split(samples, CLEAN_BATCH):
        more = clean_batch(job, now, client, index, torch.ones(len(index), device=index.device))
        sums = Sums(*map(add, sums, more))
    return sums


CleanPass = Callable[[Job, Trained, Client, Tensor], Sums]


def survey(job: Job, now: Trained, client: Client, when: str, clean: CleanPass = clean_pass) -> tuple[Client, Tensors]:
    """A clean pass over the client's own data, taken in by the method where it asks for one; its tally."""
    sums = clean(job, now, client, job.members)
    return (job.method.absorb(client, sums.survey, when) if when in job.method.survey_at else client), sums.tally


class Outcome(NamedTuple):
    """What a client's round leaves behind. Tallies may be empty where they were not asked for."""

    reply: Reply
    client: Client
    train_loss: Tensor
    """Mean cross entropy over the round's samples, as they were trained on."""
    on_own: Tensors
    """`metrics.tally` of the local model on the client's own data."""
    on_test: Tensors
    """The same on the test set."""


def here(job: Job) -> Job:
    """A job whose client's state is where its data are; until then it rests in host memory."""
    device = job.members.device
    return job._replace(client=mapped(lambda tensor: tensor.to(device, non_blocking=True), job.client))


def run_client(job: Job) -> Outcome:
    """A client's whole round. Only its steps run in training mode."""
    job = here(job)
    versions = _versions(job)
    with torch.random.fork_rng([job.members.device] if job.members.is_cuda else []):
        torch.manual_seed(job.seed)
        moving, fixed = begin(job)
        job.net.train(True)
        for number, parts in enumerate(steps_of(job.images, draws_of(job.plan, job.members), job.train.images)):
            if "epoch" in job.method.survey_at and number % job.plan.epoch_steps == 0:
                client, _ = survey(job, moving.now, moving.client, "epoch")
                moving = moving._replace(client=client)
                job.net.train(True)
            moving = step(job.net, job.method, moving, fixed, parts)
        job.net.train(False)
        outcome = finish(job, moving, fixed)
    require_outline(outline(job.client), outcome.client, job)
    if written := [name for name, version in _versions(job).items() if version != versions[name]]:
        what = f"{type(job.method).__name__}: {written[0]}"
        raise UpdateError(
            f"{what} was written to in place, which changes it for other clients, too. Make a new tensor."
        )
    return outcome


def _versions(job: Job) -> dict[str, int]:
    """How often each tensor that a method is given has been written to."""
    parts = {f"shared.{part}": group for part, group in job.shared._asdict().items()}
    parts |= {"client.private": job.client.private, "client.memo": job.client.memo}
    named = {f"{part}['{name}']": tensor for part, group in parts.items() for name, tensor in group.items()}
    return {name: tensor._version for name, tensor in ({"client.counts": job.client.counts} | named).items()}


def require_outline(expected: Any, found: Any, job: Job) -> None:
    """What a client keeps is of one kind from `init_client` on, so that a run can go on from any round."""
    if outline(found) != expected:
        raise UpdateError(
            f"{type(job.method).__name__}: a client's state has changed its names, types or shapes. What it keeps is "
            "given by init_client, zeros perhaps."
        )


def begin(job: Job, clean: CleanPass = clean_pass) -> tuple[Moving, Fixed]:
    """What there is before the first step."""
    device, plan, train = job.members.device, job.plan, job.train
    of_sgd = (job.lr, train.momentum, train.weight_decay, train.clip or math.inf)
    hyper = Hyper(*(scalar(value, device) for value in of_sgd))
    n, steps, epoch_steps = (scalar(value, device) for value in (len(job.members), plan.steps, plan.epoch_steps))
    did = Did(n, steps, epoch_steps, hyper.lr, hyper.momentum)
    client = job.method.begin(job.shared, job.client)
    now = Trained(job.shared.params, client.private)
    velocity = Trained(*({name: _zeros(w.shape, w.dtype, device) for name, w in group.items()} for group in now))
    if "start" in job.method.survey_at:
        client, _ = survey(job, now, client, "start", clean)
    return Moving(now, velocity, client, scalar(0, device)), Fixed(job.shared, did, hyper)


# A GPU's host spends more time on many small tensors than on training. Nobody writes to these.


@functools.lru_cache(4096)
def scalar(value: float, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


@functools.lru_cache(256)
def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def finish(
    job: Job, moving: Moving, fixed: Fixed, clean: CleanPass = clean_pass, measure: CleanPass = clean_pass
) -> Outcome:
    """What there is after the last step. `measure` makes the passes on which only the tallies depend."""
    method, now, client = job.method, moving.now, moving.client
    on_own: Tensors = {}
    on_test: Tensors = {}
    if job.measure or "end" in method.survey_at:
        client, on_own = survey(job, now, client, "end", clean if "end" in method.survey_at else measure)
    client, extra, told = method.finish(now, job.shared, client, fixed.did)
    client = client._replace(private=now.private)
    if job.measure:
        on_test = measure(job, now, moving.client, job.test).tally
    return Outcome(Reply(now.params, extra, told), client, moving.loss_sum / int(job.plan.size.sum()), on_own, on_test)
