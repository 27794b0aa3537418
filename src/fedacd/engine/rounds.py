"""The round loop: sample, train, aggregate, evaluate, record, checkpoint."""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedacd import metrics
from fedacd.engine.local import Images, Outcome, run_client, tally_of
from fedacd.engine.plan import Stream, generator, local_plan, participants, torch_seed
from fedacd.engine.setup import Setup
from fedacd.errors import RecordError, UpdateError
from fedacd.methods import Client, Method, Reply, Server, Shared, Tensors, Total, Trained
from fedacd.partition import class_counts
from fedacd.records import State


class Fold:
    """Replies summed up as they arrive, in float64."""

    def __init__(self, method: Method, shared: Shared) -> None:
        self._method, self._shared = method, shared
        self._moved = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in shared.params.items()}
        self._extra: Tensors = {}
        self._told: list[Tensors] = []

    def add(self, reply: Reply) -> None:
        u = self._method.weight(reply.told).double()
        for name, w in self._shared.params.items():
            self._moved[name] += u * (reply.params[name].double() - w.double())
        for name, value in reply.extra.items():
            self._extra[name] = self._extra[name] + value.double() if name in self._extra else value.double()
        self._told.append(reply.told)

    def total(self) -> Total:
        told = {name: torch.stack([one[name] for one in self._told]) for name in self._told[0]}
        return Total(self._moved, self._extra, told)


class Simulation:
    """One run: its data on the device, and its state after the last finished round."""

    def __init__(self, setup: Setup) -> None:
        self.config, self.method, self.device = setup.config, setup.method, setup.device
        self.net = setup.net.to(setup.device, bf16=setup.config.run.precision == "bf16")
        self.net.train(False)
        self.train_images, self.test_images = _images(setup)
        self.members = [torch.from_numpy(members).to(self.device) for members in setup.members]
        counts = torch.from_numpy(class_counts(setup.dataset.y_train, setup.members, setup.dataset.num_classes))
        self.priors = metrics.label_priors(counts)
        server = self.method.init_server(self.net, self._rng(0))
        # Clients rest in host memory, so that the device holds one at a time.
        clients = [self.method.init_client(self.net, server.shared, row) for row in counts]
        self.state = State(0, _server_to(server, self.device), clients)

    def restore(self, state: State) -> None:
        """Go on from a checkpoint of this run."""
        try:
            state = _in_order_of(self.state, state)
        except (KeyError, ValueError) as error:
            raise RecordError(f"the checkpoint does not fit this run: {error}.") from None
        self.state = state._replace(server=_server_to(state.server, self.device))

    def advance(self) -> dict[str, Any]:
        """Do one round and return its line of the record. An exception leaves the state after the round before."""
        started, train = time.perf_counter(), self.config.train
        round_, server, clients = self.state.round + 1, self.state.server, list(self.state.clients)
        measure = round_ % self.config.run.eval_every == 0 or round_ == train.rounds
        chosen = participants(self.config.run.seed, round_, len(clients), train.participation).tolist()
        lr = train.lr * train.lr_decay ** (round_ - 1)

        fold = Fold(self.method, server.shared)
        losses, bytes_up, on_own, on_test = [], [], [], []
        for number in chosen:
            outcome = self._train(round_, number, lr, measure)
            fold.add(outcome.reply)
            clients[number] = _client_to(outcome.client, torch.device("cpu"))
            losses.append(float(outcome.train_loss))
            bytes_up.append(sum(map(_bytes, outcome.reply)))
            if measure:
                on_own.append(outcome.tally)
                on_test.append(self._test_local(outcome))

        total = fold.total()
        down = _bytes(server.shared.params) + _bytes(server.shared.extra)
        server = self.method.combine(self.net, server, total, len(clients), self._rng(round_))
        measured: dict[str, Any] = dict.fromkeys((*metrics.METRICS, "per_class"))
        measured["train_loss"] = sum(losses) / len(losses)
        if measure:
            counts = tally_of(lambda x: self.method.predict(self.net, server.shared, x), self.test_images)
            measured |= metrics.global_metrics(counts, self.priors)
            measured |= metrics.local_metrics(on_test, on_own, self.priors)
        if bad := [key for key, value in measured.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise UpdateError(f"round {round_}: {', '.join(bad)} cannot be computed. {self._advice()}")
        self.state = State(round_, server, clients)
        weights = self.method.weight(total.told).double()
        return {
            "round": round_,
            **measured,
            "lr": lr,
            "participants": chosen,
            "weights": (weights / weights.sum()).tolist(),
            "told": {name: values.tolist() for name, values in total.told.items()},
            "bytes_up": sum(bytes_up) / len(bytes_up),
            "bytes_down": down,
            "seconds": time.perf_counter() - started,
        }

    def _train(self, round_: int, number: int, lr: float, measure: bool) -> Outcome:
        """One client's round, checked."""
        config, members = self.config, self.members[number]
        plan = local_plan(config.run.seed, round_, number, len(members), config.train, config.data)
        client = _client_to(self.state.clients[number], self.device)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            # Only dropout draws from torch's own generator; seeded so that a resumed run draws the same.
            torch.manual_seed(torch_seed(config.run.seed, Stream.TORCH, round_, number))
            outcome = run_client(
                self.net,
                self.method,
                self.state.server.shared,
                client,
                self.train_images,
                members,
                plan,
                config.train,
                lr,
                measure=measure,
            )
        if reason := self.method.check(outcome.reply, self.state.server.shared):
            raise UpdateError(f"round {round_}, client {number}: {reason}. {self._advice()}")
        return outcome

    def _advice(self) -> str:
        return f"A smaller train.lr (now {self.config.train.lr:g}) often helps."

    def _test_local(self, outcome: Outcome) -> metrics.Tally:
        """The local model on the test set."""
        client, shared = outcome.client, self.state.server.shared
        now = Trained(outcome.reply.params, client.private)
        return tally_of(lambda x: self.method.outputs(self.net, now, shared, client, x)["logits"], self.test_images)

    def _rng(self, round_: int) -> np.random.Generator:
        return generator(self.config.run.seed, Stream.SERVER, round_)


@contextlib.contextmanager
def arithmetic(precision: str, threads: int | None = None) -> Iterator[None]:
    """Set what CUDA does with float32, tf32 only where it is asked for, and how many CPU threads compute."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
    before, threads_before = [switch.fp32_precision for switch in switches], torch.get_num_threads()
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.set_num_threads(threads or threads_before)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def _in_order_of(fresh: State, saved: State) -> State:
    """A checkpoint with its tensors in the order of a fresh state: norms are summed in that order, to the bit."""

    def group(fresh: Tensors, saved: Tensors) -> Tensors:
        if fresh.keys() != saved.keys():
            raise ValueError(f"it has {sorted(saved)}, not {sorted(fresh)}")
        for name, tensor in fresh.items():
            if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
                raise ValueError(f"{name} is {saved[name].dtype} {list(saved[name].shape)}")
        return {name: saved[name] for name in fresh}

    if len(fresh.clients) != len(saved.clients):
        raise ValueError(f"it has {len(saved.clients)} clients")
    one, other = fresh.server, saved.server
    shared = Shared(group(one.shared.params, other.shared.params), group(one.shared.extra, other.shared.extra))
    clients = [
        Client(b.counts, group(a.private, b.private), group(a.memo, b.memo))
        for a, b in zip(fresh.clients, saved.clients, strict=True)
    ]
    return State(saved.round, Server(shared, group(one.hidden, other.hidden)), clients)


def _images(setup: Setup) -> tuple[Images, Images]:
    """Train and test images on the device."""
    dataset, settings = setup.dataset, setup.config.data

    def on_device(array: NDArray[Any]) -> Tensor:
        with warnings.catch_warnings():
            # Data sets are read-only arrays, which torch cannot mark as such; nothing here writes to them.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array).to(setup.device)

    mean, std = (torch.tensor(values, device=setup.device) for values in (settings.mean, settings.std))
    train = Images(
        pixels=on_device(dataset.x_train),
        labels=on_device(dataset.y_train),
        mean=mean,
        std=std,
        crop=settings.crop or 0,
    )
    test = Images(pixels=on_device(dataset.x_test), labels=on_device(dataset.y_test), mean=mean, std=std)
    return train, test


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _to(tensors: Tensors, device: torch.device) -> Tensors:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _client_to(client: Client, device: torch.device) -> Client:
    return Client(client.counts.to(device), _to(client.private, device), _to(client.memo, device))


def _server_to(server: Server, device: torch.device) -> Server:
    shared = Shared(_to(server.shared.params, device), _to(server.shared.extra, device))
    return Server(shared, _to(server.hidden, device))
