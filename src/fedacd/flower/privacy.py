"""Central differential privacy: each site's update is clipped, and noise is added to their sum.

    update   d_m = (w_m - w) * min(1, S / ||w_m - w||)              S = flower.dp_clip
    sum      sum of d_m + N(0, (z S)^2) in every coordinate          z = flower.dp_noise

What is protected is a site's whole contribution, against whoever sees the global models; the server itself sees the
clipped updates. Epsilon is that of the Gaussian mechanism over all rounds so far, by Flower's accountant, as if the
site had taken part in each. No amplification by sampling is claimed: participants follow from the seed, which every
site knows. For the same reason the noise comes from the system's own randomness, and a private run cannot be repeated.
A run keeps its noise, clip and delta from its first reply on, since epsilon is of all its rounds alike.

Only what the noise covers may reach the model. A method is refused whose replies carry more than weights, or weigh
differently.
"""

import importlib.util
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fedacd.errors import ConfigError, RecordError
from fedacd.flower.settings import Flower
from fedacd.methods import Method, Reply, Shared, Tensors


class Privacy:
    """The mechanism and its account."""

    def __init__(self, *, clip: float, noise: float, delta: float, num_clients: int, seed: int | None = None) -> None:
        self._clip, self._noise, self._delta, self._num_clients = clip, noise, delta, num_clients
        self._rng = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
        self._releases: list[int] = []

    @classmethod
    def of(cls, flower: Flower, method: Method, like: Reply, num_clients: int) -> "Privacy | None":
        """As the settings ask; None where they do not."""
        if not flower.dp_noise:
            return None
        if like.extra or float(method.weight(like.told)) != 1 or float(method.weight(_other(like.told))) != 1:
            raise ConfigError(
                f"flower.dp_noise = {flower.dp_noise}: replies of {method.title} carry more than weights or do not "
                "weigh the same, which the noise does not cover. Use method.weighting = 'uniform' or another method."
            )
        _require_accountant()
        return cls(clip=flower.dp_clip, noise=flower.dp_noise, delta=flower.dp_delta, num_clients=num_clients)

    def clip(self, reply: Reply, shared: Shared) -> Reply:
        """The reply with an update of norm `clip` at most."""
        moved = {name: reply.params[name].double() - w.double() for name, w in shared.params.items()}
        norm = torch.stack([delta.square().sum() for delta in moved.values()]).sum().sqrt()
        scale = (self._clip / norm.clamp(min=self._clip)).item()
        return reply._replace(params={name: w.double() + scale * moved[name] for name, w in shared.params.items()})

    def noisy(self, moved: Tensors) -> Tensors:
        """The sum of updates with its noise."""
        std = self._noise * self._clip
        return {
            name: total + std * torch.randn(total.shape, generator=self._rng, dtype=total.dtype)
            for name, total in moved.items()
        }

    def count(self, num_replies: int) -> None:
        """Enter one noisy sum into the account."""
        self._releases.append(num_replies)

    def spent(self) -> dict[str, float]:
        """What a round's line says of it."""
        return {"epsilon": self.epsilon(), **self.terms}

    @property
    def terms(self) -> dict[str, float]:
        """What a run keeps."""
        return {"delta": self._delta, "clip": self._clip, "noise": self._noise}

    def epsilon(self) -> float:
        """Of all sums so far."""
        if not self._releases:
            return 0.0
        from flwr.serverapp import (
            GaussianPrivacyEvent,
            NeighboringRelation,
            PrivacyConfig,
            RdpAccountant,
            SamplingMethod,
        )

        model = PrivacyConfig(
            target_delta=self._delta,
            population_size=self._num_clients,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = RdpAccountant(model)
        for num_replies in self._releases:
            accountant.compose(GaussianPrivacyEvent(self._noise, num_replies, self._num_clients))
        return float(accountant.get_epsilon(self._delta))


def require_same_terms(privacy: Privacy | None, history: Iterable[Mapping[str, Any]]) -> None:
    """Refuse to go on after rounds that were private in another way, or not at all."""
    now = privacy.terms if privacy else {"noise": 0.0}
    for line in history:
        then = line.get("privacy") or {"noise": 0.0}
        if line["participants"] and (other := [key for key in now if key in then and now[key] != then[key]]):
            key = other[-1]  # the noise comes last, and is what matters most
            raise RecordError(
                f"flower.dp_{key} = {now[key]:g}: round {line['round']} of this run was done with {then[key]:g}, and "
                "epsilon is of a run whose rounds are alike. Choose another run.out."
            )


def _require_accountant() -> None:
    if importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError(
            "flower.dp_noise needs Flower's accountant: in a clone of fedacd, "
            "pip install --constraint constraints-flower.txt '.[flower-dp]'."
        )


def _other(told: Tensors) -> Tensors:
    """Other scalars, each by a factor of its own, to see whether the weight of a reply depends on them."""
    return {name: factor * value for factor, (name, value) in enumerate(told.items(), 2)}
