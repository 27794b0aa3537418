"""FedNTD: federated not-true distillation.

G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun. Preservation of the Global Knowledge by Not-True Distillation in Federated
Learning. NeurIPS 2022.

With t and s the softmax, at temperature tau, of the global and the local model's logits other than y:

    client  CE + beta * tau^2 * KL(t || s)
    server  as FedAvg

The teacher is the round's global model on the same augmented, and mixed, batch. Uploads what FedAvg does. No deviation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Method, Shared, Tensors, Trained
from fedacd.methods.common import is_class, weighted_mean
from fedacd.models.net import Net


def not_true_kl(teacher: Tensor, student: Tensor, y: Tensor, tau: float) -> Tensor:
    """KL(t || s) of every sample over the classes other than y."""
    true = is_class(y, student.shape[-1])
    log_t, log_s = ((f / tau).masked_fill(true, -math.inf).log_softmax(-1) for f in (teacher, student))
    # Where the true class was removed both are -inf: 0 there, before the difference turns into NaN.
    difference = torch.where(true, 0, log_t) - torch.where(true, 0, log_s)
    return (log_t.exp() * difference).sum(-1)


@dataclass(frozen=True, kw_only=True)
class FedNTD(Method):
    """Keeps what the global model thinks of the classes that a sample is not."""

    citation: ClassVar[str] = "Lee et al., NeurIPS 2022"

    beta: float = setting(1.0, "weight of the distillation", at_least=0)
    tau: float = setting(1.0, "temperature", above=0)

    def outputs(self, net: Net, now: Trained, shared: Shared, client: Client, x: Tensor) -> Tensors:
        with torch.no_grad():
            teacher = net(shared.params, x)[1]
        return {**super().outputs(net, now, shared, client, x), "teacher": teacher}

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        distilled = self.tau**2 * weighted_mean(not_true_kl(out["teacher"], out["logits"], y, self.tau), w)
        return super().loss(out, y, w, now, shared, client) + self.beta * distilled
