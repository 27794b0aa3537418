"""FedNova.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020.

With tau_m local steps at momentum rho, a_m the number of plain steps they are worth (`effective_steps`) and p_m the
share of samples among the participants:

    d_m = (x - x_m)/a_m
    server  x <- x - (sum of p_m a_m) * sum of p_m d_m

A client uploads two scalars: its number of samples and a_m, 4 bytes more than FedAvg. `weighting = "uniform"` gives
every participant the same p_m.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Did, Method, Reply, Server, Shared, Tensors, Total, Trained
from fedacd.methods.common import effective_steps
from fedacd.models.net import Net

LEAST_STEPS = 0.99
"""What a may be at least: a single step's is 1, but for rounding."""


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """Averages updates per unit of local work, then takes the average amount of work in that direction."""

    citation: ClassVar[str] = "Wang et al., NeurIPS 2020"

    weighting: str = setting("samples", "p: by samples, or equal", one_of=("samples", "uniform"))

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        return client, {}, {"n": did.n, "a": effective_steps(did.steps, did.momentum)}

    def check(self, reply: Reply, shared: Shared) -> str | None:
        if "a" not in reply.told:
            return "the number of steps a is missing"
        a = float(reply.told["a"])
        fits = a >= LEAST_STEPS
        return super().check(reply, shared) or (None if fits else f"the number of steps a is {a:g}, not 1 or more")

    def weight(self, told: Tensors) -> Tensor:
        return super().weight(told) / told["a"]

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        share = super().weight(total.told).double()  # p before it is normalised
        work = (share * total.told["a"].double()).sum() / share.sum()
        params = {
            name: (x + work * total.moved[name] / share.sum()).to(x.dtype) for name, x in server.shared.params.items()
        }
        return server._replace(shared=server.shared._replace(params=params))
