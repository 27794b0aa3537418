"""What every method of the registry must hold, on a real client of digits.

Stacked over clients (vmap) equals one by one, padding changes nothing, inputs are not modified, and odd clients work.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedacd import models
from fedacd.config import Data, Train
from fedacd.data import Dataset
from fedacd.engine.batches import Batch, Images
from fedacd.engine.local import (
    Fixed,
    Hyper,
    Job,
    Moving,
    gradient_of_one,
    gradient_under_vmap,
    run_client,
    step,
)
from fedacd.engine.plan import local_plan
from fedacd.methods import METHODS, Client, Did, Method, Reply, Server, Shared, Total, Trained
from fedacd.models.net import Net

ALL = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def net(digits: Dataset) -> Net:
    return models.build("small-cnn", digits.shape, digits.num_classes, {}, seed=0)


@pytest.fixture(scope="module")
def images(digits: Dataset) -> Images:
    return Images(
        pixels=torch.tensor(digits.x_train),
        labels=torch.tensor(digits.y_train),
        mean=torch.tensor(digits.mean),
        std=torch.tensor(digits.std),
    )


def start(name: str, net: Net, counts: Tensor) -> tuple[Method, Server, Client]:
    method = METHODS[name]()
    server = method.init_server(net, np.random.default_rng(0))
    return method, server, method.init_client(net, server.shared, counts)


def counts_of(images: Images, members: Tensor) -> Tensor:
    return torch.bincount(images.labels[members], minlength=10)


def members_of(images: Images, classes: tuple[int, ...], size: int) -> Tensor:
    held = torch.isin(images.labels, torch.tensor(classes))
    return held.nonzero()[:, 0][:size]


def one_round(name: str, net: Net, images: Images, members: Tensor, **train: Any) -> Any:
    method, server, client = start(name, net, counts_of(images, members))
    return run_client(job_of(net, method, server.shared, client, images, members, **train))


def job_of(
    net: Net, method: Method, shared: Shared, client: Client, images: Images, members: Tensor, **train: Any
) -> Job:
    settings = Train.build({"epochs": 2, "batch_size": 8, "weight_decay": 1e-5, "mixup": True, **train})
    plan = local_plan(0, 1, 0, images.labels[members].numpy(), settings, Data(crop=0, flip=False))
    return Job(
        net=net, method=method, shared=shared, client=client, images=images, members=members, test=members,
        plan=plan, train=settings, lr=0.01, seed=0, measure=True,
    )  # fmt: skip


@ALL
@pytest.mark.parametrize(("classes", "size"), [((3,), 12), ((3,), 1), ((0, 1, 2), 17), (tuple(range(10)), 40)], ids=str)
def test_odd_clients_work(name: str, classes: tuple[int, ...], size: int, net: Net, images: Images) -> None:
    """One class, one sample, a last batch of one sample, every class."""
    members = members_of(images, classes, size)
    outcome = one_round(name, net, images, members)
    method, server, _ = start(name, net, torch.ones(10))
    sent = server.shared.params
    assert method.check(outcome.reply, server.shared) is None
    assert outcome.train_loss.isfinite()
    assert any(not torch.equal(sent[key], value) for key, value in outcome.reply.params.items())
    assert int(outcome.on_own["seen"].sum()) == size


@ALL
def test_a_round_modifies_none_of_its_inputs(name: str, net: Net, images: Images) -> None:
    members = members_of(images, (0, 4, 7), 30)
    method, server, client = start(name, net, counts_of(images, members))
    shared = server.shared
    before = pytree.tree_map(torch.clone, (shared, client, net.initial, images.pixels, members))
    run_client(job_of(net, method, shared, client, images, members, epochs=1))
    torch.testing.assert_close((shared, client, net.initial, images.pixels, members), before, rtol=0, atol=0)


@ALL
def test_a_round_is_repeatable_to_the_bit(name: str, net: Net, images: Images) -> None:
    members = members_of(images, (1, 2), 20)
    first, second = (one_round(name, net, images, members) for _ in range(2))
    torch.testing.assert_close(first.reply, second.reply, rtol=0, atol=0)


def batch_of(images: Images, members: Tensor, pad: int, dtype: torch.dtype) -> Batch:
    """A mixed batch, with padding at its end."""
    x, y = images.clean(members).to(dtype), images.labels[members]
    lam, partner = torch.tensor(0.7, dtype=dtype), torch.arange(len(y)).flip(0)
    x, y2 = lam * x + (1 - lam) * x[partner], y[partner]
    junk = torch.full((pad, *x.shape[1:]), 3.0, dtype=dtype)
    zeros = torch.zeros(pad, dtype=y.dtype)
    w = torch.cat([torch.ones(len(y)), torch.zeros(pad)]).to(dtype)
    return Batch(torch.cat([x, junk]), torch.cat([y, zeros]), w, torch.cat([y2, zeros]), lam)


def steps_of(
    net: Net, method: Method, shared: Shared, did: Did, hyper: Hyper, gradient_of: Any = gradient_of_one
) -> Callable[[Client, Batch], Any]:
    """Two steps, so that what the first observed is used by the second; then the reply."""

    def do(client: Client, batch: Batch) -> Any:
        now = Trained(shared.params, client.private)
        velocity = Trained(*({k: torch.zeros_like(v) for k, v in part.items()} for part in now))
        client = method.begin(shared, client)
        target = (batch.y[:, None] == torch.arange(10)).to(batch.x.dtype)

        def surveyed(client: Client, when: str) -> Client:
            if when not in method.survey_at:
                return client
            out = method.outputs(net, now, shared, client, batch.x)
            return method.absorb(client, method.survey(out, target, batch.w, client), when)

        fixed, own = Fixed(shared, did, hyper), batch._replace(y2=None, lam=None)
        moving = Moving(now, velocity, surveyed(client, "start"), batch.x.new_zeros(()))
        for _ in range(2):
            moving = step(net, method, moving, fixed, [own, batch], gradient_of)
        now, _, client, loss = moving
        client = surveyed(client, "end")
        client, extra, told = method.finish(now, shared, client, did)
        return now, client, extra, told, loss

    return do


def to(tree: Any, dtype: torch.dtype) -> Any:
    """Numbers in another precision; counts stay counts."""
    return pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


def scalars(dtype: torch.dtype) -> tuple[Did, Hyper]:
    def scalar(value: float) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    lr, momentum = scalar(0.05), scalar(0.9)
    return (
        Did(scalar(9), scalar(2), scalar(2), lr, momentum),
        Hyper(lr, momentum, scalar(1e-3), scalar(10)),
    )


@ALL
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=str)
def test_stacked_clients_equal_one_by_one(
    name: str, dtype: torch.dtype, tolerance: float, net: Net, images: Images
) -> None:
    groups = [members_of(images, classes, 9) for classes in ((0, 1), (2, 3, 4), (5,), tuple(range(10)))]
    batches = [batch_of(images, members, pad=3, dtype=dtype) for members in groups]
    clients, did_hyper = [], scalars(dtype)
    for members in groups:
        method, server, client = start(name, net, counts_of(images, members))
        clients.append(to(client, dtype))
    shared = to(server.shared, dtype)
    do = steps_of(net, method, shared, *did_hyper)
    alone = [do(client, batch) for client, batch in zip(clients, batches, strict=True)]

    def stack(*tensors: Tensor) -> Tensor:
        return torch.stack(tensors)

    stacked = steps_of(net, method, shared, *did_hyper, gradient_under_vmap)
    together = torch.func.vmap(stacked)(pytree.tree_map(stack, *clients), pytree.tree_map(stack, *batches))
    torch.testing.assert_close(together, pytree.tree_map(stack, *alone), rtol=tolerance, atol=tolerance)


@ALL
def test_padding_changes_nothing(name: str, net: Net, images: Images) -> None:
    members = members_of(images, (0, 1, 5), 9)
    method, server, client = start(name, net, counts_of(images, members))
    shared, client = to((server.shared, client), torch.float64)
    do = steps_of(net, method, shared, *scalars(torch.float64))
    bare, padded = (do(client, batch_of(images, members, pad, torch.float64)) for pad in (0, 7))
    torch.testing.assert_close(bare, padded, rtol=1e-9, atol=1e-9)


@ALL
def test_check_refuses_what_does_not_fit(name: str, net: Net, images: Images) -> None:
    reply: Reply = one_round(name, net, images, members_of(images, (0, 1), 10)).reply
    method, server, _ = start(name, net, torch.ones(10))
    shared = server.shared
    key = next(iter(reply.params))
    bad = {
        "missing": {k: v for k, v in reply.params.items() if k != key},
        "not known": reply.params | {"surplus": torch.zeros(1)},
        "expected": reply.params | {key: reply.params[key].flatten()},
        "float64": reply.params | {key: reply.params[key].double()},
        "not finite": reply.params | {key: reply.params[key] * float("nan")},
    }
    for reason, params in bad.items():
        assert reason in str(method.check(reply._replace(params=params), shared))


@ALL
def test_combine_of_unmoved_clients_changes_nothing(name: str, net: Net, images: Images) -> None:
    """Replies equal to what was sent leave the weights as they are."""
    from fedacd.engine.underway import Fold

    method, server, _ = start(name, net, torch.full((10,), 5))
    shared = server.shared
    reply: Reply = one_round(name, net, images, members_of(images, (0, 1), 10)).reply
    fold = Fold(method, shared)
    for _ in range(3):
        fold.add(reply._replace(params=shared.params))
    told = {key: torch.stack([value] * 3) for key, value in reply.told.items()}
    after = method.combine(net, server, Total(fold.moved, fold.extra, told), 3, np.random.default_rng(0))
    torch.testing.assert_close(after.shared.params, shared.params, rtol=0, atol=0)


@ALL
def test_the_registry_names_title_citation_and_documents_every_field(name: str) -> None:
    import dataclasses

    kind = METHODS[name]
    assert kind.title.lower() == name
    assert kind.citation
    assert all(spec.metadata["doc"] for spec in dataclasses.fields(kind))
    assert kind.__module__.rsplit(".", 1)[-1] == name
