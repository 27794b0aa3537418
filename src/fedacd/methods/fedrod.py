"""FedROD.

H.-Y. Chen, W.-L. Chao. On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022.

With n_c the client's number of samples of class c, z the features and G, H the generic and the personal head:

    client  balanced softmax on the generic head: CE on G(z) + gamma * log n_c, classes that it does not hold left out
            plus CE on stop(G(z)) + H(stop(z)), which trains H alone
    server  as FedAvg, of everything but H

Uploads what FedAvg does; H stays on the client. It starts at zero, as the generic head's correction of nothing, which
is a choice. The generic head is what is measured, and without a prior at test time.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Method, Shared, Tensors, Trained
from fedacd.methods.common import cross_entropy, weighted_mean
from fedacd.models.net import Net


@dataclass(frozen=True, kw_only=True)
class FedROD(Method):
    """A generic predictor trained as if classes were balanced, and a personal one beside it."""

    citation: ClassVar[str] = "Chen and Chao, ICLR 2022"
    needs_features: ClassVar[bool] = True

    gamma: float = setting(1.0, "strength of the balanced softmax", at_least=0)

    def init_client(self, net: Net, shared: Shared, counts: Tensor) -> Client:
        return Client(counts, {"head": torch.zeros(net.num_classes, net.num_features or 0)}, {})

    def outputs(self, net: Net, now: Trained, shared: Shared, client: Client, x: Tensor) -> Tensors:
        out = super().outputs(net, now, shared, client, x)
        personal = out["logits"].detach() + out["features"].detach() @ now.private["head"].mT
        return {**out, "personal": personal}

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        logits, counts = out["logits"], client.counts
        balanced = logits + self.gamma * counts.clamp(min=1).to(logits.dtype).log()
        generic = cross_entropy(torch.where(counts > 0, balanced, -math.inf), y)
        return weighted_mean(generic, w) + weighted_mean(cross_entropy(out["personal"], y), w)
