"""Scaffold.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning. ICML 2020.

With c the server's control variate and c_m the client's, both zero at first:

    client  every gradient + c - c_m
            c_m+ = c_m - c + (x - x_m)/(lr * a_m)                            option II
    server  x <- mean of x_m,  c <- mean of c_m over all clients by work      server learning rate 1

a_m is the number of plain steps that the local ones are worth at their momentum (`effective_steps`): dividing by their
number instead would overstate c_m almost ten times at 0.9. The correction enters as the gradient of <c - c_m, w>, so
that it is clipped together with the rest.

A client's work is a_m times the weight of its reply. The publication gives every client the same number of steps, and
so the plain mean; it is what makes the corrections cancel in the new x. Clients with unequal amounts of data move by
a_m (c - c_m), and it takes the mean by work to cancel those. The plain mean would be ruled by the clients with the
least data: theirs are the c_m of a few first steps, which those with the most would then follow for hundreds.

The server adds up what changed, the sum of a_m (c_m+ - c_m), and divides by K times the mean work of the replies so
far. A client uploads it and its work beside its weights: twice FedAvg's bytes, and receives twice as many.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedacd.methods.base import Client, Did, Method, Reply, Server, Shared, Tensors, Total, Trained
from fedacd.methods.common import effective_steps, inner_product
from fedacd.models.net import Net


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Corrects each client's drift by what it and everybody else did before."""

    citation: ClassVar[str] = "Karimireddy et al., ICML 2020"

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        shared = super().init_server(net, rng).shared
        zeros = {name: torch.zeros_like(x) for name, x in shared.params.items()}
        hidden = {name: torch.zeros((), dtype=torch.float64) for name in ("work", "replies")}
        return Server(shared._replace(extra=zeros), hidden)

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {}, {name: torch.zeros_like(x) for name, x in shared.params.items()})

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        correction = {name: c - client.memo[name] for name, c in shared.extra.items()}
        return super().loss(out, y, w, now, shared, client) + inner_product(correction, now.params)

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        a = effective_steps(did.steps, did.momentum)
        work = a * self.weight({"n": did.n})
        per_step = 1 / (did.lr * a)
        change = {name: (x - now.params[name]) * per_step - shared.extra[name] for name, x in shared.params.items()}
        memo = {name: client.memo[name] + delta for name, delta in change.items()}
        extra = {name: work * delta for name, delta in change.items()}
        return client._replace(memo=memo), extra, {"n": did.n, "work": work}

    def check(self, reply: Reply, shared: Shared) -> str | None:
        if "work" not in reply.told:
            return "the work is missing"
        work = float(reply.told["work"])
        return super().check(reply, shared) or (None if work > 0 else f"the work is {work:g}, not above 0")

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        work, replies = server.hidden["work"], server.hidden["replies"]
        before = num_clients * work / replies.clamp(min=1)
        work, replies = work + total.told["work"].double().sum(), replies + len(total.told["work"])
        after = num_clients * work / replies
        c = {
            name: ((c.double() * before + total.extra[name]) / after).to(c.dtype)
            for name, c in server.shared.extra.items()
        }
        shared = super().combine(net, server, total, num_clients, rng).shared
        return Server(shared._replace(extra=c), {"work": work, "replies": replies})
