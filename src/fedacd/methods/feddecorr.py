"""FedDecorr.

Y. Shi, J. Liang, W. Zhang, V. Y. F. Tan, S. Bai. Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning. ICLR 2023.

With Z the features of a batch of N, normalised over the batch to mean 0 and unbiased variance 1 (+ 1e-8), and M = Z'Z:

    client  CE + coef * (mean of the squared off-diagonal entries of M)/N
    server  as FedAvg

Uploads what FedAvg does. The scale is that of the published code, about 62 times the paper's formula at N = 64, so
coefficients are not interchangeable with the paper's. A batch of one sample adds nothing.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Method, Shared, Tensors, Trained

EPSILON = 1e-8


def correlation(features: Tensor, w: Tensor) -> Tensor:
    """The penalty of one batch [B, D]; samples of weight 0 are padding."""
    N, D, w = w.sum(), features.shape[-1], w[:, None]
    centred = (features - (w * features).sum(0) / N) * w
    variance = centred.square().sum(0) / (N - 1).clamp(min=1)
    Z = centred / (variance + EPSILON).sqrt()
    off_diagonal = ~torch.eye(D, dtype=torch.bool, device=Z.device)
    return torch.where(off_diagonal, Z.mT @ Z, 0).square().sum() / max(D * (D - 1), 1) / N


@dataclass(frozen=True, kw_only=True)
class FedDecorr(Method):
    """Keeps the features from collapsing into a few directions."""

    citation: ClassVar[str] = "Shi et al., ICLR 2023"
    needs_features: ClassVar[bool] = True

    coef: float = setting(0.1, "weight of the penalty; 0.05 on CIFAR-100", at_least=0)

    @classmethod
    def defaults(cls, dataset: str, model: str) -> dict[str, Any]:
        own = {"method.coef": 0.05} if dataset == "cifar100" else {}
        return super().defaults(dataset, model) | own

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        penalty = self.coef * correlation(out["features"], w)
        return super().loss(out, y, w, now, shared, client) + penalty
