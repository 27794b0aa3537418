"""How a run is judged, from per-class numbers.

    accuracy         mean over classes of the global model's test accuracy: a test set with uniform labels
    accuracy_client  the global model's per-class test accuracy weighted by a client's label prior, mean over clients
    risk             per-class test error of each participant's local model, dotted with every client's prior, mean
                     over clients, then over participants: the adaptability risk R(w_m) of the paper
    kl_local         KL(P||Q) of the participants' local models on their own data, mean over the classes they hold
    kl_test          the same on the test set, over all classes
    kl_test_99       the same with tau = 0.99 in Q, as the paper's numbers have it, not 1 - 1e-5, as its text has

A class without test samples is left out, and priors are renormalised over the classes that have some.

Shapes: C classes, M clients, R local models.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedacd.methods import Tensors
from fedacd.methods.common import TAU, is_class, kl_to_template, mean_outputs

METRICS = ("accuracy", "accuracy_client", "risk", "kl_local", "kl_test", "kl_test_99")
"""The numbers that a round is judged by; `per_class` comes beside them. A deployment has some only."""

NEWER = frozenset({"kl_test_99"})
"""Those that older records lack."""

LATE = 10
"""A run's number is the mean over so many of its last rounds."""

Tally = Tensors
"""Sums over samples by true class: `right` [C] correct ones, `seen` [C] all, `sums` [C, C] probability outputs."""


def tally(logits: Tensor, y: Tensor, w: Tensor | None = None) -> Tally:
    """The sums of one batch; samples of weight 0 are padding."""
    target = is_class(y, logits.shape[-1]).to(logits.dtype)
    if w is not None:
        target = target * w[:, None]
    right = (logits.argmax(-1) == y).to(logits.dtype)
    return {
        "right": (right[:, None] * target).sum(0),
        "seen": target.sum(0),
        "sums": target.mT @ logits.softmax(-1),
    }


def per_class_accuracy(counts: Tally) -> Tensor:
    """[..., C] in float64, NaN for a class without samples."""
    return counts["right"].double() / counts["seen"].double()


def mean_over(values: Tensor, priors: Tensor) -> Tensor:
    """[..., C] per-class values (NaN: no samples) weighted by priors [M, C] -> [..., M]."""
    known = ~values.isnan()
    weights = priors * known[..., None, :]
    weighted = (torch.where(known, values, 0)[..., None, :] * weights).sum(-1)
    return weighted / weights.sum(-1)


def client_accuracy(accuracy: Tensor, priors: Tensor) -> float:
    return float(mean_over(accuracy, priors).nanmean())


def adaptability_risk(errors: Tensor, priors: Tensor) -> float:
    """[R, C] per-class errors of local models, [M, C] priors: mean over clients, then over local models."""
    return float(mean_over(errors, priors).nanmean(-1).mean())


def kl_divergence(counts: Tally, tau: float = TAU) -> Tensor:
    """KL(P||Q) of one model or of several stacked ones, mean over the classes that have samples."""
    present = counts["seen"] > 0
    return kl_to_template(probability_matrix(counts), present, tau).sum(-1) / present.sum(-1)


def probability_matrix(counts: Tally) -> Tensor:
    """P [..., C, C]: mean probability outputs by true class, 0 for a class without samples; float64."""
    return mean_outputs(counts["sums"].double(), counts["seen"].double())


def label_priors(counts: Tensor) -> Tensor:
    """[M, C] samples of each class -> label distributions, float64."""
    return counts.double() / counts.double().sum(-1, keepdim=True)


def accuracies(counts: Tally) -> dict[str, Any]:
    """Of the global model, from its tally on the test set: what takes no knowledge of the clients."""
    accuracy = per_class_accuracy(counts)
    per_class = [None if math.isnan(value) else value for value in accuracy.tolist()]
    return {"accuracy": float(accuracy.nanmean()), "per_class": per_class}


def global_metrics(counts: Tally, priors: Tensor) -> dict[str, Any]:
    """Of the global model, from its tally on the test set and the clients' label distributions."""
    return accuracies(counts) | {"accuracy_client": client_accuracy(per_class_accuracy(counts), priors)}


def local_metrics(on_test: Tally, on_own: Tally, priors: Tensor) -> dict[str, Any]:
    """Of the participants' local models, from their stacked tallies on the test set and on their own data."""
    return {
        "risk": adaptability_risk(1 - per_class_accuracy(on_test), priors),
        "kl_local": float(kl_divergence(on_own).mean()),
        "kl_test": float(kl_divergence(on_test).mean()),
        "kl_test_99": float(kl_divergence(on_test, 0.99).mean()),
    }


def class_means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean of `per_class` over rounds or runs; None for a class of which nothing is known."""
    means: list[float | None] = []
    for column in zip(*rows, strict=False):
        known = [value for value in column if value is not None]
        means.append(math.fsum(known) / len(known) if known else None)
    return means
