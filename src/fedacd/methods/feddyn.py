"""FedDyn.

D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021.

With g_m kept by the client and h by the server, both zero at first:

    client  w_m <- argmin CE - <g_m, w> + alpha/2 ||w - x||^2
            g_m <- g_m - alpha (w_m - x)
    server  h <- h - alpha/K * sum of (w_m - x),  x <- mean of w_m - h/alpha

Uploads what FedAvg does. No deviation.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Did, Method, Server, Shared, Tensors, Total, Trained
from fedacd.methods.common import inner_product, squared_distance
from fedacd.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """Makes the clients' optima agree with the global one in the limit."""

    citation: ClassVar[str] = "Acar et al., ICLR 2021"

    alpha: float = setting(0.01, "weight of the dynamic regulariser", above=0)
    weighting: str = setting("uniform", "weight of a reply: the rule knows equal ones only", one_of=("uniform",))

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        server = super().init_server(net, rng)
        return server._replace(hidden={name: torch.zeros_like(x) for name, x in server.shared.params.items()})

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {}, {name: torch.zeros_like(x) for name, x in shared.params.items()})

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        linear = inner_product(client.memo, now.params)
        near = self.alpha / 2 * squared_distance(now.params, shared.params)
        return super().loss(out, y, w, now, shared, client) - linear + near

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        memo = {name: g - self.alpha * (now.params[name] - shared.params[name]) for name, g in client.memo.items()}
        return client._replace(memo=memo), {}, {"n": did.n}

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        h = {name: (h - self.alpha / num_clients * total.moved[name]).to(h.dtype) for name, h in server.hidden.items()}
        server = super().combine(net, server, total, num_clients, rng)
        params = {name: x - h[name] / self.alpha for name, x in server.shared.params.items()}
        return Server(server.shared._replace(params=params), h)
