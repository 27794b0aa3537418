"""CReFF: classifier re-training with federated features.

X. Shang, Y. Lu, G. Huang, H. Wang. Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training
with Federated Features. IJCAI 2022.

    client  plain FedAvg; and of each class it holds, in a clean pass before, the mean gradient of the cross entropy
            with respect to the re-trained head, at the received body
    server  weights as FedAvg. Moves each class's federated features until their own gradient matches the clients'
            mean, by the sum over rows of (1 - cosine); then trains a fresh head on all federated features

A client uploads C x C x D gradients and C flags more than FedAvg, and receives the C x D re-trained head, by which the
global model is measured. Deviations from the published code: a clean pass over all images of a class, not 10 draws of
at most 64; 300 full-batch steps of the head at 1.6, not some 47,000 on mini-batches at 0.01: the loss ends as low.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedacd.config import setting
from fedacd.methods.base import Client, Did, Method, Server, Shared, Tensors, Total, Trained
from fedacd.models.net import Net

LEAST_LENGTH = 1e-8
"""Of a mean gradient, in a cosine."""


def match_slope(features: Tensor, head: Tensor, wanted: Tensor) -> Tensor:
    """The derivative of the sum of (1 - cosine), by the features [C, n, D] of all classes.

    The cosines are those of each class's cross-entropy gradients, one row of the head [C, D] each, with `wanted`
    [C, C, D], whose rows have length 1, or 0 to be left out. Written out, because autograd's many small operations take
    longer on a GPU than a round's training.
    """
    C, n = len(head), features.shape[1]
    p = (features @ head.mT).softmax(-1)
    residual = p - torch.eye(C, dtype=p.dtype, device=p.device)[:, None, :]
    gradient = residual.mT @ features  # n times the mean; only its direction counts
    length = gradient.norm(dim=-1, keepdim=True).clamp(min=n * LEAST_LENGTH)
    unit = gradient / length
    by_gradient = ((unit * wanted).sum(-1, keepdim=True) * unit - wanted) / length
    by_p = features @ by_gradient.mT
    by_logits = p * (by_p - (p * by_p).sum(-1, keepdim=True))
    slope: Tensor = residual @ by_gradient + by_logits @ head
    return slope


@dataclass(frozen=True, kw_only=True)
class CReFF(Method):
    """FedAvg, with a head re-trained on features that look like the clients'."""

    citation: ClassVar[str] = "Shang et al., IJCAI 2022"
    needs_features: ClassVar[bool] = True
    survey_at = frozenset({"start"})

    num_features: int = setting(100, "federated features of a class", at_least=1)
    match_steps: int = setting(100, "steps that move the features in a round", at_least=1)
    match_lr: float = setting(0.1, "their learning rate", above=0)
    head_steps: int = setting(300, "full-batch steps that train the head", at_least=1)
    head_lr: float = setting(1.6, "their learning rate", above=0)

    def init_server(self, net: Net, rng: np.random.Generator) -> Server:
        server = super().init_server(net, rng)
        features = rng.standard_normal((net.num_classes, self.num_features, net.num_features or 0), np.float32)
        head = net.initial[net.head_names[0]]
        return Server(server.shared._replace(extra={"head": head}), {"features": torch.from_numpy(features)})

    def outputs(self, net: Net, now: Trained, shared: Shared, client: Client, x: Tensor) -> Tensors:
        out = super().outputs(net, now, shared, client, x)
        return {**out, "retrained": out["features"].detach() @ shared.extra["head"].mT}

    def survey(self, out: Tensors, target: Tensor, w: Tensor, client: Client) -> Tensors:
        residual = out["retrained"].softmax(-1) - target
        return {"gradients": torch.einsum("bk,b,bc,bd->kcd", target, w, residual, out["features"])}

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        counts = client.counts.to(client.memo["gradients"].dtype)
        means = client.memo["gradients"] / counts.clamp(min=1)[:, None, None]
        return client._replace(memo={}), {"gradients": means, "held": counts.clamp(max=1)}, {"n": did.n}

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        features, head = server.hidden["features"], server.shared.extra["head"]
        held = total.extra["held"].to(head.dtype)
        wanted = total.extra["gradients"].to(head.dtype) / held.clamp(min=1)[:, None, None]
        features = self.match(features, head, wanted, held > 0)
        shared = super().combine(net, server, total, num_clients, rng).shared
        return Server(shared._replace(extra={"head": self.retrain(features, rng)}), {"features": features})

    def match(self, features: Tensor, head: Tensor, wanted: Tensor, sent: Tensor) -> Tensor:
        """Move the features [C, n, D] of the classes that were sent until their gradients point as wanted."""
        wanted = torch.where(sent[:, None, None], F.normalize(wanted, dim=-1, eps=LEAST_LENGTH), 0)
        for _ in range(self.match_steps):
            features = features - self.match_lr * match_slope(features, head, wanted)
        return features

    def retrain(self, features: Tensor, rng: np.random.Generator) -> Tensor:
        """A fresh head [C, D], trained on all features by full-batch gradient descent."""
        C, n, D = features.shape
        head = torch.from_numpy(rng.uniform(-1, 1, (C, D)) / math.sqrt(D)).to(features)
        x, target = features.flatten(0, 1), torch.eye(C).to(features).repeat_interleave(n, 0)
        for _ in range(self.head_steps):
            residual = (x @ head.mT).softmax(-1) - target
            head = torch.addmm(head, residual.mT, x, alpha=-self.head_lr / len(x))
        return head

    def predict(self, net: Net, shared: Shared, x: Tensor) -> Tensor:
        return net.features(shared.params, x) @ shared.extra["head"].mT
