"""Formulas that several methods, or a method and the metrics, share.

Shapes: B batch, C classes.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

TAU = 1 - 1e-5
"""The diagonal of the template Q in the paper."""


def weighted_mean(values: Tensor, w: Tensor) -> Tensor:
    """Mean over the samples of a batch; `w` is 0 for padding."""
    return (values * w).sum() / w.sum()


def is_class(y: Tensor, num_classes: int) -> Tensor:
    """[B] labels -> [B, C] mask of the true class (F.one_hot fails under vmap)."""
    return y[..., None] == torch.arange(num_classes, device=y.device)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """[B, C], [B] -> [B]."""
    return -logits.log_softmax(-1).gather(-1, y[..., None]).squeeze(-1)


def mean_outputs(sums: Tensor, seen: Tensor) -> Tensor:
    """P: [C, C] sums of probability outputs by true class, [C] their number -> rows of means, 0 where none was seen."""
    return sums / torch.where(seen > 0, seen, 1)[..., None]


def kl_to_template(P: Tensor, present: Tensor, tau: float = TAU) -> Tensor:
    """KL(P_i || Q_i) of every row, 0 for absent ones; Q has tau on the diagonal and (1 - tau)/(C - 1) elsewhere."""
    C = P.shape[-1]
    on, off = math.log(tau), math.log((1 - tau) / (C - 1))
    log_q = off + (on - off) * torch.eye(C, dtype=P.dtype, device=P.device)
    rows = (torch.xlogy(P, P) - P * log_q).sum(-1)
    return torch.where(present, rows, 0)


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """||a - b||^2 over named tensors."""
    return torch.stack([(x - b[name]).square().sum() for name, x in a.items()]).sum()


def inner_product(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """<a, b> over named tensors."""
    return torch.stack([(x * b[name]).sum() for name, x in a.items()]).sum()


def effective_steps(steps: Tensor, momentum: Tensor) -> Tensor:
    """How many plain SGD steps are worth `steps` with momentum: [t - r (1 - r^t)/(1 - r)]/(1 - r)."""
    t, r = steps.double(), momentum.double()  # differences of nearly equal numbers, where r is close to 1
    return ((t - r * (1 - r**t) / (1 - r)) / (1 - r)).to(steps.dtype)
