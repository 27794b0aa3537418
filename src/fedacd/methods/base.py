"""The interface of a federated method. Its default bodies are FedAvg.

Data that lives for different times has different types, so that a reader sees what leaves a client (exactly `Reply`)
and what a checkpoint must hold (`Server` and every `Client`). A method is a frozen dataclass: its fields are its
hyper-parameters, it holds no state. What a client does is a pure function of ONE client, with no client axis and safe
under `torch.func.vmap`: no data-dependent branches, no boolean-mask indexing, no in-place writes.

In the order of a round:

    server                                  client
    shared ------------------------------>  begin, then for every step: outputs, loss, (SGD), observe
                                            survey over the local data where `survey_at` asks for it, absorb
    check, weight, sum over replies  <----  finish -> Reply
    combine -> the next shared

Shapes: B batch, C classes, D features.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedacd.config import Settings, setting
from fedacd.errors import ConfigError
from fedacd.lookup import code_mark, of_another_python, package_of
from fedacd.methods.common import cross_entropy, weighted_mean
from fedacd.models.net import Net

Tensors = dict[str, Tensor]
"""Flat and named: stacks, serialises, travels."""


class Shared(NamedTuple):
    """Server to client: the weights to start from and whatever else the method sends."""

    params: Tensors
    extra: Tensors


class Server(NamedTuple):
    """The server's state; `hidden` never leaves it."""

    shared: Shared
    hidden: Tensors


class Client(NamedTuple):
    """A client's state, kept between rounds; it never leaves the client."""

    counts: Tensor
    """[C] samples of each class."""
    private: Tensors
    """Weights that SGD moves but nobody else sees."""
    memo: Tensors
    """Anything else."""


class Trained(NamedTuple):
    """What SGD moves: the shared weights and the client's private ones."""

    params: Tensors
    private: Tensors


class Did(NamedTuple):
    """A client's work in one round, known before it starts; every field is a scalar tensor."""

    n: Tensor
    steps: Tensor
    epoch_steps: Tensor
    lr: Tensor
    momentum: Tensor


class Reply(NamedTuple):
    """Client to server; `told` holds scalars."""

    params: Tensors
    extra: Tensors
    told: Tensors


class Total(NamedTuple):
    """All that the server needs of a round's replies."""

    moved: Tensors
    """Sum of u_m * (w_m - w), u_m from `Method.weight`."""
    extra: Tensors
    """Sum of the replies' extras."""
    told: Tensors
    """The replies' scalars, stacked in the order of client numbers."""


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """FedAvg; every other method overrides what it does differently."""

    section: ClassVar[str] = "method"
    title: ClassVar[str] = "Method"
    """The name of the class, where it does not give another."""
    citation: ClassVar[str] = "no citation"
    needs_features: ClassVar[bool] = False
    """Whether a model without a head, and so without features, is refused."""

    weighting: str = setting(
        "uniform", "weight of a reply: equal, or by its number of samples", one_of=("uniform", "samples")
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "title" not in cls.__dict__:
            cls.title = cls.__name__

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> Self:
        """Make one from plain values; `fingerprint` among them must be the class's own. One of another Python cannot be
        compared: that is a warning."""
        mark, values = cls.fingerprint(), dict(values)
        if mark is not None and (there := values.pop("fingerprint", mark)) != mark:
            if not (python := of_another_python(there)):
                raise ConfigError(f"method.fingerprint: '{cls.title}' is not the method of this config any more.")
            text = f"method.fingerprint is of Python {python}: whether '{cls.title}' has changed cannot be told here."
            warnings.warn(text, stacklevel=2)
        return super().build(values)

    @classmethod
    def fingerprint(cls) -> str | None:
        """16 hex digits and the Python they hold for: they change with the code of a method of one's own, of what it
        inherits and of what that refers to (see `code_mark`); None for the methods of this package."""
        own = {package for kind in cls.__mro__ if (package := package_of(kind))}
        return code_mark(cls, own, configured=Method) if own else None

    @classmethod
    def defaults(cls, dataset: str, model: str) -> dict[str, Any]:
        """Settings, as `section.key`, that this method wants where the user says nothing."""
        return {"train.mixup": False}

    @property
    def survey_at(self) -> frozenset[str]:
        """When a clean pass over the local data is wanted: of `start`, `epoch` (before each) and `end`."""
        return frozenset()

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        return Server(Shared(dict(net.initial), {}), {})

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {}, {})

    # Pure functions of one client.

    def begin(self, shared: Shared, client: Client) -> Client:
        """Before the first step of a round."""
        return client

    def outputs(self, net: Net, now: Trained, shared: Shared, client: Client, x: Tensor) -> Tensors:
        """The forward pass; `logits` is what the local model is judged by. A row for each of x in every output."""
        features, logits = net(now.params, x)
        return {"logits": logits} if features is None else {"features": features, "logits": logits}

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        """The objective of a batch. Sample weights `w` are 1, and 0 for padding."""
        return weighted_mean(cross_entropy(out["logits"], y), w)

    def observe(self, out: Tensors, target: Tensor, w: Tensor, client: Client, did: Did) -> Client:
        """After a step, with its outputs; `target`, a row for each of them by C classes, is soft under mixup."""
        return client

    def survey(self, out: Tensors, target: Tensor, w: Tensor, client: Client) -> Tensors:
        """What to sum over the batches of a clean pass."""
        return {}

    def absorb(self, client: Client, sums: Tensors, when: str) -> Client:
        """Take in the sums of a clean pass."""
        return client._replace(memo={**client.memo, **sums})

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        """After the last step: the state to keep (its private weights are `now`'s), `Reply.extra` and `Reply.told`."""
        return client, {}, {"n": did.n}

    # On the server.

    def check(self, reply: Reply, shared: Shared) -> str | None:
        """Why a reply cannot be used, or None.

        A simulation asks late, and with stand-ins of 0, or NaN where a tensor is not finite: names, shapes, finiteness
        and `told` can be judged everywhere, other values in deployments only.
        """
        for name, tensor in shared.params.items():
            got = reply.params.get(name)
            if got is None:
                return f"parameter {name} is missing"
            if got.shape != tensor.shape or got.dtype != tensor.dtype:
                return (
                    f"parameter {name} is {got.dtype} {list(got.shape)}, expected {tensor.dtype} {list(tensor.shape)}"
                )
        if surplus := reply.params.keys() - shared.params.keys():
            return f"parameter {min(surplus)} is not known"
        for part in reply:
            for name, tensor in part.items():
                # A stand-in is one number, in many places.
                one = not any(tensor.stride())
                if not (math.isfinite(tensor.as_strided((), ())) if one else torch.isfinite(tensor).all()):
                    return f"{name} is not finite"
        return None

    def weight(self, told: Tensors) -> Tensor:
        """u of a reply; works on one reply's scalars and on stacked ones."""
        return told["n"] if self.weighting == "samples" else torch.ones_like(told["n"])

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        """The next state of the server: w + sum of u_m (w_m - w) / sum of u_m."""
        scale = self.weight(total.told).sum()
        params = {name: (w + total.moved[name] / scale).to(w.dtype) for name, w in server.shared.params.items()}
        return server._replace(shared=server.shared._replace(params=params))

    def predict(self, net: Net, shared: Shared, x: Tensor) -> Tensor:
        """Logits of the global model."""
        return net(shared.params, x)[1]
