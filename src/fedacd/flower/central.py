"""The server's side of a deployment, whatever carries the messages.

A round has the participants that the simulation would have. Their replies are checked when they come and folded in
the order of client numbers when the round is closed, so that the same replies give the same weights.

What is not known at the server is null in the record: KL, risk and accuracy on the clients' label mixes need labels
that stay at the sites, and the training loss does, too.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedacd import metrics
from fedacd.checkpoint import State
from fedacd.engine.batches import Images
from fedacd.engine.local import Job, run_client, tally_of
from fedacd.engine.plan import Stream, generator, local_plan, participants
from fedacd.engine.rounds import in_order_of
from fedacd.engine.underway import Fold, bytes_of
from fedacd.errors import ConfigError
from fedacd.flower.privacy import Privacy
from fedacd.flower.settings import Deployment
from fedacd.methods import Reply, Server, Shared, Tensors, Total

BLIND = ("accuracy_client", "risk", "kl_local", "kl_test", "kl_test_99", "train_loss")
"""What only the sites could tell."""


class Central:
    """A run as the server sees it: its state after the last closed round, and the round under way."""

    def __init__(self, deployment: Deployment) -> None:
        self.config, self.flower, self.method = deployment.config, deployment.flower, deployment.method
        self.net = deployment.net.to("cpu", bf16=self.config.run.precision == "bf16")
        self.net.train(False)
        self._images, self._test = _images(deployment)
        first = self.method.init_server(self.net, self._rng(0))
        self.state = State(0, first, [])
        self.like = self._dry_run(first)
        """A reply as it must be: names, shapes and dtypes."""
        self.privacy = Privacy.of(self.flower, self.method, self.like, self.config.partition.clients)
        self._accepted: dict[int, int] = {}
        self._refusing: set[int] = set()
        """Clients that were refused since a reply was last used."""
        self.begin()

    def restore(self, state: State, history: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint of this run and the lines of its rounds."""
        self.state = in_order_of(self.state, state)
        for line in history:
            self._accepted |= dict.fromkeys(line["participants"], line["round"])
            if self.privacy and line["participants"]:
                self.privacy.count(len(line["participants"]))
        self.begin()

    @property
    def done(self) -> bool:
        return self.state.round >= self.config.train.rounds

    def begin(self) -> None:
        """Start the next round."""
        self.round = self.state.round + 1
        train = self.config.train
        drawn = participants(self.config.run.seed, self.round, self.config.partition.clients, train.participation)
        self.chosen: list[int] = drawn.tolist()
        self.replies: dict[int, Reply] = {}
        self.refused: dict[int, str] = {}
        self.attempts = 1
        self._since = time.perf_counter()

    @property
    def missing(self) -> list[int]:
        """Participants that have not answered yet."""
        return [client for client in self.chosen if client not in self.replies and client not in self.refused]

    def accepted(self, client: int) -> int:
        """The last round in which a reply of this client's was used, 0 for none."""
        return self._accepted.get(client, 0)

    def take(self, client: int, reply: Reply) -> str | None:
        """Keep a reply for the round, or say why it is refused."""
        reason = self._problem(reply)
        if reason:
            self.refuse(client, reason)
        else:
            self.replies[client] = reply
        return reason

    def refuse(self, client: int, reason: str) -> None:
        self.refused[client] = reason

    def _problem(self, reply: Reply) -> str | None:
        for part, got, like in zip(Reply._fields, reply, self.like, strict=True):
            for name, tensor in like.items():
                if name not in got or got[name].shape != tensor.shape or got[name].dtype != tensor.dtype:
                    return f"{part} {name} is missing or of another kind"
        if "n" in reply.told:
            n, most = float(reply.told["n"]), self.flower.max_samples
            if not (math.isfinite(n) and n.is_integer() and 1 <= n <= most):
                return f"the number of samples is {n:g}, not a whole number from 1 to {most}"
        return self.method.check(reply, self.state.server.shared)

    @property
    def enough(self) -> bool:
        return len(self.replies) >= self.flower.min_replies

    @property
    def hopeless(self) -> bool:
        """Whether every client of the run has been refused since a reply was last used."""
        return not self.replies and len(self._refusing | self.refused.keys()) == self.config.partition.clients

    @property
    def untrained(self) -> bool:
        """Whether no reply has ever been used."""
        return not self._accepted

    def close(self) -> dict[str, Any]:
        """Aggregate, measure, and return the round's line. With too few replies the model stays as it was."""
        server, shared = self.state.server, self.state.server.shared
        clients = sorted(self.replies) if self.enough else []
        told: Tensors = {}
        if clients:
            told = {name: torch.stack([self.replies[c].told[name] for c in clients]) for name in self.like.told}
            total = Total(*self._sums(clients, shared), told)
            server = self.method.combine(self.net, server, total, self.config.partition.clients, self._rng(self.round))
        measured = self._measure(server.shared)
        self._accepted |= dict.fromkeys(clients, self.round)
        self._refusing = set() if clients else self._refusing | self.refused.keys()
        self.state = State(self.round, server, [])
        weights = self.method.weight(told).double() if clients else torch.zeros(0)
        up = [sum(map(bytes_of, self.replies[client])) for client in clients]
        return {
            "round": self.round,
            **measured,
            "lr": self.config.train.lr_in(self.round),
            "participants": clients,
            "refused": [{"client": client, "reason": why} for client, why in sorted(self.refused.items())],
            "absent": self.missing,
            "attempts": self.attempts,
            "weights": (weights / weights.sum()).tolist() if clients else [],
            "told": {name: values.tolist() for name, values in told.items()},
            "bytes_up": sum(up) / len(up) if up else 0,
            "bytes_down": bytes_of(shared.params) + bytes_of(shared.extra),
            "seconds": time.perf_counter() - self._since,
            **({"privacy": self.privacy.spent()} if self.privacy else {}),
        }

    def _sums(self, clients: Sequence[int], shared: Shared) -> tuple[Tensors, Tensors]:
        fold = Fold(self.method, shared)
        for client in clients:
            reply = self.replies[client]
            fold.add(reply if self.privacy is None else self.privacy.clip(reply, shared))
        if self.privacy:
            self.privacy.count(len(clients))
            return self.privacy.noisy(fold.moved), fold.extra
        return fold.moved, fold.extra

    def _measure(self, shared: Shared) -> dict[str, Any]:
        measured: dict[str, Any] = dict.fromkeys(("accuracy", "per_class", *BLIND))
        if self.flower.evaluate and self.config.measured_in(self.round):
            measured |= metrics.accuracies(tally_of(self.net, self.method, shared, self._images, self._test))
        return measured

    def _dry_run(self, first: Server) -> Reply:
        """A round of a client that has a single image: the method itself shows what its replies look like."""
        config = self.config
        counts = torch.zeros(self.net.num_classes, dtype=torch.int64)
        counts[self._images.labels[0]] = 1
        job = Job(
            net=self.net,
            method=self.method,
            shared=first.shared,
            client=self.method.init_client(self.net, first.shared, counts),
            images=self._images,
            members=torch.tensor([0]),
            test=torch.empty(0, dtype=torch.int64),
            plan=local_plan(0, 0, 0, np.zeros(1, np.int64), config.train, config.data),
            train=config.train,
            lr=config.train.lr,
            seed=0,
            measure=False,
        )
        return run_client(job).reply

    def _rng(self, round_: int) -> np.random.Generator:
        return generator(self.config.run.seed, Stream.SERVER, round_)


def _images(deployment: Deployment) -> tuple[Images, torch.Tensor]:
    """The test images of the server, or black ones in their place, and all of their numbers."""
    dataset, settings = deployment.dataset, deployment.config.data
    if settings.mean is None or settings.std is None:
        raise ConfigError("data.mean and data.std are not set.")
    pixels, labels = torch.tensor(dataset.x_test), torch.tensor(dataset.y_test)
    images = Images(
        pixels=pixels,
        labels=labels,
        mean=torch.tensor(settings.mean),
        std=torch.tensor(settings.std),
        crop=settings.crop or 0,
    )
    return images, torch.arange(len(labels))
