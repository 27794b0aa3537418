"""FedLC: federated learning via logits calibration.

J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu. Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022.

With n_c the client's number of samples of class c:

    client  CE on f_c - tau * n_c^(-1/4), classes that the client does not hold left out
    server  as FedAvg

Uploads what FedAvg does. Deviation: the printed formula leaves y out of the denominator, which taken literally
collapses; the cross entropy keeps it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.methods.base import Client, Method, Shared, Tensors, Trained


@dataclass(frozen=True, kw_only=True)
class FedLC(Method):
    """Larger margins for rare classes."""

    citation: ClassVar[str] = "Zhang et al., ICML 2022"

    tau: float = setting(1.0, "strength of the calibration", at_least=0)

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        logits, counts = out["logits"], client.counts
        calibrated = logits - self.tau * counts.clamp(min=1).to(logits.dtype) ** -0.25
        calibrated = torch.where(counts > 0, calibrated, -math.inf)
        return super().loss({"logits": calibrated}, y, w, now, shared, client)
