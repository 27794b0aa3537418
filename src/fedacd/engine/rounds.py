"""A run, round by round: sample, hand out jobs, aggregate, evaluate, record."""

import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedacd import metrics
from fedacd.checkpoint import State
from fedacd.engine.batches import Images
from fedacd.engine.local import Job, Outcome, TallyOf, run_client, tally_of
from fedacd.engine.plan import Stream, generator, local_plan, participants, torch_seed
from fedacd.engine.program import aside
from fedacd.engine.setup import Setup, images_of
from fedacd.engine.spread import ALONE, World
from fedacd.engine.trees import mapped
from fedacd.engine.underway import Fold, Later, Round, at_rest, bytes_of, stand_ins, to_device, witness_of
from fedacd.errors import RecordError, UpdateError
from fedacd.methods import Client, Reply, Server, Shared, Tensors, Total
from fedacd.partition import class_counts

MOST_UNREAD = 2
"""Rounds of a run whose numbers may be on their way to the host while the next one is trained."""


class Closed(NamedTuple):
    """A round whose numbers have not been read yet."""

    round: Round
    clients: list[Client]
    later: Later
    """The server's state, what was told and seen, the global model's tally, and whether that state is finite."""
    shared: Shared
    """What the clients were sent."""


class Simulation:
    """One run: its data on the device, and its state after the last recorded round, on the host.

    A round is opened, fed with outcomes and closed, which sums up, aggregates and evaluates on the device; `record`
    reads its numbers back. The next round may be opened before that, so that a GPU need not wait for the host.
    """

    def __init__(self, setup: Setup, images: Images | None = None, world: World = ALONE) -> None:
        self.config, self.method, self.device, self.world = setup.config, setup.method, setup.device, world
        self.net = setup.net.to(setup.device, bf16=setup.config.run.precision == "bf16")
        self.net.train(False)
        self.images = images or images_of(setup)
        known = len(setup.dataset.y_train)
        self.test = torch.arange(known, len(self.images.labels), device=self.device)
        self.members = [torch.from_numpy(members).to(self.device) for members in setup.members]
        self._labels = [setup.dataset.y_train[members] for members in setup.members]
        counts = torch.from_numpy(class_counts(setup.dataset.y_train, setup.members, setup.dataset.num_classes))
        self.counts, self.priors = counts, metrics.label_priors(counts)
        self._measured_on: tuple[list[int], dict[str, Tensors]] = [], {}
        """The participants of the last recorded round, and the stacked tallies of their models."""
        server = self.method.init_server(self.net, self._rng(0))
        clients = [self.method.init_client(self.net, server.shared, row) for row in counts]
        self._begin_from(State(0, server, clients))

    def _begin_from(self, state: State) -> None:
        self.state = state
        self._head = state._replace(server=to_device(state.server, self.device))
        self._at_rest = self.device.type != "cuda" or self.world.size > 1  # other ranks' lie in ordinary memory
        self._open: Round | None = None
        self._closed: list[Closed] = []
        self._since = time.perf_counter()

    def restore(self, state: State) -> None:
        """Go on from a checkpoint of this run."""
        self._begin_from(in_order_of(self.state, state))

    def agree(self) -> None:
        """Start from rank 0's state on every rank."""
        if self.world.size > 1:
            self.world.require_same("settings or data", int(self.config.digest(), 16))
            round_, server, clients = self.state
            number, server, clients = self.world.same((torch.tensor(round_), server, clients))
            self._begin_from(State(int(number), server, clients))

    def advance(self) -> dict[str, Any]:
        """Do one round, one client after the other, and return its line of the record."""
        for number, job in self.open().items():
            self.feed(number, run_client(job))
        self.close()
        return self.record()

    @property
    def done(self) -> bool:
        """Whether every round has been opened and closed."""
        return self._head.round >= self.config.train.rounds

    def open(self) -> dict[int, Job]:
        """Start the next round: the jobs of its participants by client number, those with the most steps first."""
        if not self._at_rest:
            clients = at_rest(self._head.clients)
            self.state, self._head = (state._replace(clients=clients) for state in (self.state, self._head))
            self._at_rest = True
        train, seed, round_ = self.config.train, self.config.run.seed, self._head.round + 1
        chosen = participants(seed, round_, len(self.members), train.participation).tolist()
        mine = self.world.share({number: len(self.members[number]) for number in chosen})
        jobs = {number: self._job(round_, number) for number in mine}
        self._open = Round(round_, chosen, jobs, Fold(self.method, self._head.server.shared))
        return jobs

    def _job(self, round_: int, number: int) -> Job:
        config, members = self.config, self.members[number]
        return Job(
            net=self.net,
            method=self.method,
            shared=self._head.server.shared,
            client=self._head.clients[number],
            images=self.images,
            members=members,
            test=self.test,
            plan=local_plan(config.run.seed, round_, number, self._labels[number], config.train, config.data),
            train=config.train,
            lr=config.train.lr_in(round_),
            seed=torch_seed(config.run.seed, Stream.TORCH, round_, number),
            measure=config.measured_in(round_),
        )

    def feed(self, number: int, outcome: Outcome) -> bool:
        """Take in a client's outcome; whether the round is ready to be closed."""
        assert self._open
        return self._open.add(number, outcome)

    def close(self, tally: TallyOf = tally_of) -> None:
        """Aggregate, and evaluate aside. An exception leaves the state after the round before."""
        assert self._open
        round_, before, world = self._open, self._head, self.world
        told = world.gather(round_.told, round_.chosen)
        clients = list(before.clients)
        if world.size > 1 and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # the clients' states must have arrived
        kept = world.gather(round_.clients, round_.chosen) if world.size > 1 else None
        for at, number in enumerate(round_.chosen):
            clients[number] = _copy_at(kept, at) if kept else round_.clients[number]
        total = Total(world.sum(round_.fold.moved), world.sum(round_.fold.extra), told)
        server = self.method.combine(self.net, before.server, total, len(clients), self._rng(round_.number))
        server = world.same(server)
        with aside((server, told, round_.seen)):
            seen, counts = world.gather(round_.seen, round_.chosen), Tensors()
            if self.config.measured_in(round_.number):
                mine = self.test[world.rank :: world.size]
                counts = world.sum(tally(self.net, self.method, server.shared, self.images, mine))
            later = Later((server, told, seen, counts, _witnesses(server)), self.device)
        self._open, self._head = None, State(round_.number, server, clients)
        self._closed.append(Closed(round_, clients, later, before.server.shared))

    @property
    def readable(self) -> bool:
        """Whether the oldest round that is closed can be read without waiting, or the host is too far ahead.

        Several ranks wait: what one of them finds in it, such as a failure, all must find at the same moment.
        """
        return self.world.size > 1 or len(self._closed) > MOST_UNREAD or self._closed[0].later.arrived

    def record(self) -> dict[str, Any]:
        """The line of the oldest round that is closed and not read yet. Its state becomes `state`."""
        round_, clients, later, sent = self._closed.pop(0)
        server, told, seen, counts, witnesses = later.get()
        for at, number in enumerate(round_.chosen):
            params, extra = (stand_ins(seen[part][at], getattr(round_.shapes, part)) for part in ("params", "extra"))
            if reason := self.method.check(Reply(params, extra, _at(told, at)), sent):
                raise UpdateError(f"round {round_.number}, client {number}: {reason}. {self._advice()}")
        if bad := [name for name, witness in witnesses.items() if not witness.isfinite().all()]:
            raise UpdateError(f"round {round_.number}: {bad[0]} of the server are not finite. {self._advice()}")
        measured: dict[str, Any] = dict.fromkeys((*metrics.METRICS, "per_class"))
        self._measured_on = round_.chosen, {}
        measured["train_loss"] = float(seen["loss"]["train"].double().mean())
        if counts:
            measured |= metrics.global_metrics(counts, self.priors)
            measured |= metrics.local_metrics(seen["test"], seen["own"], self.priors)
            self._measured_on = round_.chosen, {where: seen[where] for where in ("own", "test")}
        if bad := [key for key, value in measured.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise UpdateError(f"round {round_.number}: {', '.join(bad)} cannot be computed. {self._advice()}")
        weights = self.method.weight(told).double()
        self.state = State(round_.number, server, clients)
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        return {
            "round": round_.number,
            **measured,
            "lr": self.config.train.lr_in(round_.number),
            "participants": round_.chosen,
            "weights": (weights / weights.sum()).tolist(),
            "told": {name: values.tolist() for name, values in told.items()},
            "bytes_up": sum(round_.bytes_up.values()) / len(round_.bytes_up),
            "bytes_down": bytes_of(sent.params) + bytes_of(sent.extra),
            "seconds": seconds,
        }

    @property
    def matrices(self) -> Tensors:
        """Of the last recorded round: P of every participant, on its own data and on the test set; class counts."""
        chosen, tallies = self._measured_on
        found = {"counts": self.counts}
        for where, counts in tallies.items():
            of = zip(chosen, metrics.probability_matrix(counts).float(), strict=True)
            found |= {f"{where}/{number}": P.clone() for number, P in of}
        return found

    def _advice(self) -> str:
        return f"A smaller train.lr (now {self.config.train.lr:g}) often helps."

    def _rng(self, round_: int) -> np.random.Generator:
        return generator(self.config.run.seed, Stream.SERVER, round_)


def in_order_of(fresh: State, saved: State) -> State:
    """A checkpoint with its tensors in the order of a fresh state: norms are summed in that order, to the bit."""

    def group(fresh: Tensors, saved: Tensors) -> Tensors:
        if fresh.keys() != saved.keys():
            raise _misfit(f"it has {sorted(saved)}, not {sorted(fresh)}")
        for name, tensor in fresh.items():
            if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
                raise _misfit(f"{name} is {saved[name].dtype} {list(saved[name].shape)}")
        return {name: saved[name] for name in fresh}

    if len(fresh.clients) != len(saved.clients):
        raise _misfit(f"it has {len(saved.clients)} clients")
    one, other = fresh.server, saved.server
    shared = Shared(group(one.shared.params, other.shared.params), group(one.shared.extra, other.shared.extra))
    clients = [
        Client(b.counts, group(a.private, b.private), group(a.memo, b.memo))
        for a, b in zip(fresh.clients, saved.clients, strict=True)
    ]
    return State(saved.round, Server(shared, group(one.hidden, other.hidden)), clients)


def _misfit(why: str) -> RecordError:
    return RecordError(f"the checkpoint does not fit this run: {why}.")


def _witnesses(server: Server) -> dict[str, Tensor]:
    parts = {"weights": server.shared.params, "extra tensors": server.shared.extra, "hidden tensors": server.hidden}
    return {name: witness_of(tensors) for name, tensors in parts.items() if tensors}


def _copy_at(stacked: Any, at: int) -> Any:
    return mapped(lambda values: values[at].clone(), stacked)


def _at(stacked: Tensors, at: int) -> Tensors:
    return {name: values[at] for name, values in stacked.items()}
