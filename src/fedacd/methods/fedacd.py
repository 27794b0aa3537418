"""FedACD: federated learning with adaptability over client distributions.

W. Zhou, S. Ding, Z. Li, W. Wang. Enhancing the Performance of Global Model by Improving the Adaptability of Local
Models in Federated Learning. IJCAI 2025.

With f the logits, y the label, P the client's C x C matrix of mean outputs softmax(f) by true class, and p the softmax
of the shifted logits f_i + log(P_yi/P_iy), which in L1 is a choice made here:

    L1 = KL(p || q),  q_y = p_y,  q_k = (1 - p_y)/(C - 1)          flattens the misclassification probabilities
    L2 = log(1 + sum over i != y of exp(f_i - f_y + log(P_yi/P_iy)))   evens out P_yi and P_iy; it is -log(p_y)
    client  w_m <- argmin L1 + lam * L2, from w
    V_m = sigmoid(1 / KL(P || Q)),  Q_ii = tau,  Q_ij = (1 - tau)/(C - 1)
    server  w <- sum of V_m w_m / sum of V_m

A client uploads its weights and one scalar, V. P never leaves it.

What the paper leaves open, or prints in another way, and the choice made here:
- P during training: of the batch itself, by its own outputs and the labels of the loss at hand, under mixup y or y'; a
  class that is not in the batch counts as missing. `refresh = "step"`: running sums of the outputs of the batches
  before, mixed labels counted by their weights, decayed by 1 - 1/max(steps of an epoch, 2) each step and started at
  zero every round, a row not seen yet giving a log ratio of 0. `refresh = "epoch"`: a clean pass before every epoch.
- p in L1: shifted, as in L2. The paper prints the softmax of f (`flatten = "outputs"`), by which L1 pushes down the
  classes that a client does not hold, as it does all others; the shift in L2 spares them that. This and P above were
  chosen because accuracy comes nearer to the paper's in most cells, risk on CIFAR-10 (docs/explanation/choices.md).
- P for the score: a clean pass after training, without mixup and augmentation. `matrix = "running"`: the sums of
  `refresh = "step"`.
- Missing classes: P_yi/P_iy is the constant `missing` for a class i that the client does not hold, 'a small value' in
  the paper. The smaller, the less a batch of one class teaches: at 1e-5 hardly anything, and classes that lie with
  clients of one class are lost (docs/explanation/choices.md).
- KL(P || Q): the mean over the rows present, since the printed sum would make V the same for every client.
  `score = "sum"`: as printed.
- Mixup: lam * L(y) + (1 - lam) * L(y') with one lam ~ Beta(0.5, 0.5) for a batch, by what it makes of FedAvg and FedACD
  on CIFAR-100; `train.mixup_alpha = 1` is the strength usual elsewhere. Partners are a permutation of the batch;
  `train.mixup_partners = "even"` draws them evenly over its classes, as the paper may mean it. `train.mixup_batch =
  "both"` trains on the batch's own images as well (docs/explanation/choices.md).
- No gradient flows through P, whose entries count as 1e-8 at least, and log(P_yi/P_iy) as between -10 and 10; the paper
  has no such bounds. The gradient through q is zero: its path cancels.
- FedACD_base of the paper's ablation is `weighting = "uniform"`.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedacd.config import setting
from fedacd.errors import ConfigError
from fedacd.methods.base import Client, Did, Method, Reply, Shared, Tensors, Trained
from fedacd.methods.common import TAU, cross_entropy, is_class, kl_to_template, mean_outputs, weighted_mean

LEAST_PROBABILITY = 1e-8
LARGEST_LOG_RATIO = 10.0
LEAST_KL = 1e-8


def flatness(logits: Tensor, y: Tensor) -> Tensor:
    """L1 of every sample in closed form: (1 - p_y)(log(C - 1) - H(r)), r the softmax over the logits other than y."""
    C = logits.shape[-1]
    true = is_class(y, C)
    others = logits.masked_fill(true, -math.inf)
    log_r = others.log_softmax(-1)
    entropy = -(log_r.exp() * torch.where(true, 0, log_r)).sum(-1)
    wrong = (others.logsumexp(-1) - logits.logsumexp(-1)).exp()
    return wrong * (math.log(C - 1) - entropy)


def log_ratio(P: Tensor, seen: Tensor, counts: Tensor, missing: float) -> Tensor:
    """[C, C] of log(P_yi / P_iy): 0 where a row is not known yet, log(missing) in the columns of classes of count 0."""
    log_P = P.clamp(min=LEAST_PROBABILITY).log()
    ratio = (log_P - log_P.mT).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    known = seen > 0
    ratio = torch.where(known[:, None] & known[None, :], ratio, 0)
    of_missing = (torch.ones_like(P) * missing).log()  # a tensor where it differs from slot to slot
    ratio = torch.where(counts[None, :] == 0, of_missing, ratio)
    return torch.where(torch.eye(P.shape[-1], dtype=torch.bool, device=P.device), 0, ratio)


@dataclass(frozen=True, kw_only=True)
class FedACD(Method):
    """L1 + lam * L2 on the clients, aggregation by V on the server."""

    citation: ClassVar[str] = "Zhou et al., IJCAI 2025"

    lam: float = setting(1.0, "weight of L2", at_least=0)
    tau: float = setting(TAU, "diagonal of the template Q", above=0, below=1)
    missing: float = setting(1e-3, "P_yi/P_iy for a class i that is missing", at_least=1e-30, at_most=1e30)
    refresh: str = setting(
        "batch",
        "P in the losses: the batch's own, running sums over steps, or a clean pass every epoch",
        one_of=("batch", "step", "epoch"),
    )
    flatten: str = setting(
        "shifted", "L1 of the outputs shifted as in L2, or as they are", one_of=("shifted", "outputs")
    )
    matrix: str = setting("clean", "P in V: a clean pass after training, or running sums", one_of=("clean", "running"))
    score: str = setting("mean", "KL(P||Q) over the rows present: their mean or their sum", one_of=("mean", "sum"))
    weighting: str = setting("score", "weight of a reply: V, or equal (FedACD_base)", one_of=("score", "uniform"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh != "step" and self.matrix == "running":
            raise ConfigError("method.matrix = 'running': needs method.refresh = 'step', which keeps the running sums.")

    @classmethod
    def defaults(cls, dataset: str, model: str) -> dict[str, Any]:
        return {"train.mixup": True}

    @property
    def survey_at(self) -> frozenset[str]:
        wanted = {"epoch": self.refresh == "epoch", "end": self.matrix == "clean"}
        return frozenset(when for when, is_wanted in wanted.items() if is_wanted)

    def begin(self, shared: Shared, client: Client) -> Client:
        """P as [C, C] sums and [C] numbers, of nothing yet: for the sums of `refresh = "step"`, and a clean pass."""
        seen = torch.zeros_like(client.counts, dtype=torch.float32)
        return client._replace(memo={"sums": torch.zeros_like(seen[:, None] * seen), "seen": seen})

    def loss(self, out: Tensors, y: Tensor, w: Tensor, now: Trained, shared: Shared, client: Client) -> Tensor:
        logits = out["logits"]
        if self.refresh == "batch":
            true = is_class(y, logits.shape[-1]).to(logits.dtype)
            known = self.survey({"logits": logits.detach()}, true, w, client)
            held = known["seen"]
        else:
            known, held = client.memo, client.counts
        P = mean_outputs(known["sums"], known["seen"])
        shifted = logits + log_ratio(P, known["seen"], held, self.missing)[y]
        L1 = flatness(shifted if self.flatten == "shifted" else logits, y)
        return weighted_mean(L1 + self.lam * cross_entropy(shifted, y), w)

    def observe(self, out: Tensors, target: Tensor, w: Tensor, client: Client, did: Did) -> Client:
        if self.refresh != "step":
            return client
        keep = 1 - 1 / did.epoch_steps.clamp(min=2)
        batch = self.survey(out, target, w, client)
        return client._replace(memo={name: keep * client.memo[name] + value for name, value in batch.items()})

    def survey(self, out: Tensors, target: Tensor, w: Tensor, client: Client) -> Tensors:
        target = target * w[:, None]
        return {"sums": target.mT @ out["logits"].softmax(-1), "seen": target.sum(0)}

    def finish(self, now: Trained, shared: Shared, client: Client, did: Did) -> tuple[Client, Tensors, Tensors]:
        seen = client.memo["seen"]
        present = (client.counts > 0) & (seen > 0)
        kl = kl_to_template(mean_outputs(client.memo["sums"], seen), present, self.tau).sum()
        if self.score == "mean":
            kl = kl / present.sum()
        V = torch.sigmoid(1 / kl.clamp(min=LEAST_KL))
        return client._replace(memo={}), {}, {"V": V}

    def check(self, reply: Reply, shared: Shared) -> str | None:
        if "V" not in reply.told:
            return "the score V is missing"
        V = float(reply.told["V"])
        return super().check(reply, shared) or (None if 0.5 < V <= 1 else f"the score V is {V:g}, not in (0.5, 1]")

    def weight(self, told: Tensors) -> Tensor:
        return told["V"] if self.weighting == "score" else torch.ones_like(told["V"])
