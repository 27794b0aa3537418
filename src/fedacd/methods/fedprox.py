"""FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in Heterogeneous Networks.
MLSys 2020.

    client  w_m <- argmin CE + mu/2 ||w - w_global||^2
    server  as FedAvg

Uploads what FedAvg does. No deviation; the publication's variable amounts of local work are not part of it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Method, Shared, Tensors, Trained
from fedacd.methods.common import squared_distance


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a pull towards the weights that the round began with."""

    citation: ClassVar[str] = "Li et al., MLSys 2020"

    mu: float = setting(0.01, "weight of the proximal term", at_least=0)

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        pull = self.mu / 2 * squared_distance(now.params, shared.params)
        return super().loss(out, y, w, now, shared, client) + pull
