"""A round under way: replies are summed up as they come, and what the host wants to know is on its way there."""

import math
from typing import Any

import torch
from torch import Tensor

from fedacd.engine.local import Job, Outcome
from fedacd.engine.trees import mapped
from fedacd.methods import Client, Method, Reply, Shared, Tensors


class Fold:
    """Replies summed up one after the other, in float64."""

    def __init__(self, method: Method, shared: Shared) -> None:
        self._method, self._params = method, shared.params
        self._start = self._flat(shared.params)
        self._moved = torch.zeros_like(self._start)
        self.extra: Tensors = {}

    def _flat(self, params: Tensors) -> Tensor:
        """All in one tensor: few operations for the host of a GPU to start."""
        return torch.cat([params[name].reshape(-1) for name in self._params]).double()

    def add(self, reply: Reply) -> None:
        moved = self._method.weight(reply.told).double() * (self._flat(reply.params) - self._start)
        for name, value in reply.extra.items():
            if name not in self.extra:
                self.extra[name] = torch.zeros_like(value, dtype=torch.float64)
        # All memory has been got: what fails for want of it can be asked again.
        self._moved += moved
        if reply.extra:
            torch._foreach_add_([self.extra[name] for name in reply.extra], list(reply.extra.values()))

    @property
    def moved(self) -> Tensors:
        """The sum of u * (w_m - w)."""
        parts = torch.split(self._moved, [w.numel() for w in self._params.values()])
        return {name: part.reshape(w.shape) for part, (name, w) in zip(parts, self._params.items(), strict=True)}


class Later:
    """Tensors on their way to the host; `get` waits for them and for nothing that was asked of the device since.

    They are kept until they have arrived: their way may be on another queue than the one that would use their memory.
    """

    def __init__(self, tree: Any, device: torch.device) -> None:
        self._kept = tree
        self._tree = to_device(tree, torch.device("cpu"))
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._arrived:
            self._arrived.record(torch.cuda.current_stream(device))

    @property
    def arrived(self) -> bool:
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def get(self) -> Any:
        if self._arrived:
            self._arrived.synchronize()
        self._kept = None
        return self._tree


class Round:
    """A round under way. Outcomes arrive in any order and are folded in the order of the jobs, so that it leaves no
    trace which of them was ready first."""

    def __init__(self, number: int, chosen: list[int], jobs: dict[int, Job], fold: Fold) -> None:
        self.number, self.chosen, self.fold = number, chosen, fold
        self.told: dict[int, Tensors] = {}
        self.seen: dict[int, dict[str, Any]] = {}
        """What only the record needs."""
        self.clients: dict[int, Client] = {}
        self.bytes_up: dict[int, int] = {}
        self._waiting: dict[int, Reply] = {}
        self._order = list(jobs)

    def add(self, client: int, outcome: Outcome) -> bool:
        """Take an outcome in; whether it was the last one."""
        reply = outcome.reply
        self.told[client] = reply.told
        self.seen[client] = {
            "params": witness_of(reply.params),
            "extra": witness_of(reply.extra) if reply.extra else outcome.train_loss.new_zeros(0),
            "loss": {"train": outcome.train_loss},
            "own": outcome.on_own,
            "test": outcome.on_test,
        }
        if len(self.told) == 1:
            self.shapes = to_device(reply, torch.device("meta"))
        # Clients rest in host memory, so that the device holds only those in training.
        self.clients[client] = to_device(outcome.client, torch.device("cpu"))
        self.bytes_up[client] = sum(map(bytes_of, reply))
        self._waiting[client] = reply
        while self._order and self._order[0] in self._waiting:
            self.fold.add(self._waiting[self._order[0]])
            del self._waiting[self._order.pop(0)]
        return not self._order


def witness_of(tensors: Tensors) -> Tensor:
    """A number for each of n tensors: 0, or NaN where something in it is not finite; [n]."""
    floats = [tensor if tensor.is_floating_point() else tensor.double() for _, tensor in sorted(tensors.items())]
    return torch.stack(torch._foreach_norm(floats, math.inf)) * 0


def bytes_of(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def stand_ins(witnesses: Tensor, shapes: Tensors) -> Tensors:
    """In place of tensors that stay on the device: of their shapes, each of one number."""
    pairs = zip(witnesses, sorted(shapes.items()), strict=True)
    return {name: witness.to(like.dtype).expand(like.shape) for witness, (name, like) in pairs}


def at_rest(clients: list[Client]) -> list[Client]:
    """Clients as they lie on a GPU's host: in pinned memory, which it can reach.

    Such memory is slow to get and quick to use again. Had the clients none at the start, each would need some when it
    first comes back from training; now it gets what another has left.
    """
    pinned: list[Client] = mapped(lambda tensor: tensor.pin_memory(), clients)
    return pinned


def to_device(tree: Any, device: torch.device) -> Any:
    """Copies, which on the way from a GPU have not arrived when this returns."""
    return mapped(lambda tensor: tensor.to(device, non_blocking=True), tree)
