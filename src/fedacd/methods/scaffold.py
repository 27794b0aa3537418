"""Scaffold.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning. ICML 2020.

With c the server's control variate and c_m the client's, both zero at first:

    client  every gradient + c - c_m
            c_m+ = c_m - c + (x - x_m)/(lr * a_m)                      option II
    server  x <- mean of x_m,  c <- c + sum of (c_m+ - c_m)/K           server learning rate 1

a_m is the number of plain steps that the local ones are worth at their momentum (`effective_steps`): dividing by their
number instead would overstate c_m almost ten times at 0.9. The correction enters as the gradient of <c - c_m, w>, so
that it is clipped together with the rest. A client uploads c_m+ - c_m beside its weights: twice FedAvg's bytes, and
receives twice as many.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedacd.methods.base import Client, Did, Method, Server, Shared, Tensors, Total, Trained
from fedacd.methods.common import effective_steps, inner_product
from fedacd.models.net import Net


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Corrects each client's drift by what it and everybody else did before."""

    title: ClassVar[str] = "Scaffold"
    citation: ClassVar[str] = "Karimireddy et al., ICML 2020"

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        server = super().init_server(net, rng)
        zeros = {name: torch.zeros_like(x) for name, x in server.shared.params.items()}
        return server._replace(shared=server.shared._replace(extra=zeros))

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {}, {name: torch.zeros_like(x) for name, x in shared.params.items()})

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        correction = {name: c - client.memo[name] for name, c in shared.extra.items()}
        return super().loss(out, y, w, now, shared, client) + inner_product(correction, now.params)

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        per_step = 1 / (did.lr * effective_steps(did.steps, did.momentum))
        change = {name: (x - now.params[name]) * per_step - shared.extra[name] for name, x in shared.params.items()}
        memo = {name: client.memo[name] + delta for name, delta in change.items()}
        return client._replace(memo=memo), change, {"n": did.n}

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        server = super().combine(net, server, total, num_clients, rng)
        c = {name: (c + total.extra[name] / num_clients).to(c.dtype) for name, c in server.shared.extra.items()}
        return server._replace(shared=server.shared._replace(extra=c))
