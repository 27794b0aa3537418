"""Whole rounds against a second implementation: plain modules, torch's optimiser, loops; from the formulas."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedacd
from fedacd.data import Dataset
from fedacd.engine.local import tally_of
from fedacd.engine.plan import local_plan, participants
from fedacd.engine.rounds import Simulation
from fedacd.engine.setup import Setup, prepare
from fedacd.errors import UpdateError
from fedacd.metrics import per_class_accuracy
from fedacd.models import SmallCNN

SMALL = {
    "partition.clients": 6,
    "train.participation": 0.5,
    "train.epochs": 2,
    "train.batch_size": 16,
    "train.rounds": 2,
}


def setup(digits: Dataset, **values: Any) -> Setup:
    named = {key.replace("__", "."): value for key, value in values.items()}
    return prepare(SMALL | named, dataset=digits)


class Naive:
    """Federated learning as one would write it down first."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.dataset = setup, setup.dataset
        self.model = SmallCNN((1, 8, 8), 10)
        self.model.load_state_dict(setup.net.initial)

    def inputs(self, images: Any) -> Tensor:
        pixels = torch.tensor(images).float() / 255
        return ((pixels - torch.tensor(self.dataset.mean)) / torch.tensor(self.dataset.std)).permute(0, 3, 1, 2)

    def round(self, number: int) -> None:
        config, start = self.setup.config, {k: v.clone() for k, v in self.model.state_dict().items()}
        total, weight_sum = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in start.items()}, 0.0
        for client in participants(config.run.seed, number, config.partition.clients, config.train.participation):
            self.model.load_state_dict(start)
            weight = self.train(number, int(client))
            weight_sum += weight
            for key, value in self.model.state_dict().items():
                total[key] += weight * value.double()
        self.model.load_state_dict({key: value / weight_sum for key, value in total.items()})

    def train(self, number: int, client: int) -> float:
        config, members = self.setup.config, self.setup.members[client]
        plan = local_plan(config.run.seed, number, client, len(members), config.train, config.data)
        lr = config.train.lr * config.train.lr_decay ** (number - 1)
        optimiser = torch.optim.SGD(
            self.model.parameters(), lr=lr, momentum=config.train.momentum, weight_decay=config.train.weight_decay or 0
        )
        self.begin(client, plan.epoch_steps)
        for order, size, lam, partner in zip(plan.order, plan.size, plan.lam, plan.partner, strict=True):
            indices, partner = members[order[:size]], partner[:size]
            x, y = self.inputs(self.dataset.x_train[indices]), torch.tensor(self.dataset.y_train[indices])
            x, y2 = lam * x + (1 - lam) * x[partner], y[partner]
            logits = self.model(x.float())
            loss = self.loss(logits, y, y2, float(lam))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), config.train.clip)
            optimiser.step()
        return self.weight(client)

    def begin(self, client: int, epoch_steps: int) -> None:
        pass

    def loss(self, logits: Tensor, y: Tensor, y2: Tensor, lam: float) -> Tensor:
        return nn.functional.cross_entropy(logits, y)

    def weight(self, client: int) -> float:
        return 1.0


class NaiveFedACD(Naive):
    def begin(self, client: int, epoch_steps: int) -> None:
        labels = self.dataset.y_train[self.setup.members[client]]
        self.held = [int((labels == k).sum()) for k in range(10)]
        self.keep = 1 - 1 / max(epoch_steps, 2)
        self.sums, self.seen = np.zeros((10, 10)), np.zeros(10)

    def shift(self, y: int, i: int) -> float:
        if i == y:
            return 0.0
        if self.held[i] == 0:
            return math.log(1e-5)
        if self.seen[y] == 0 or self.seen[i] == 0:
            return 0.0
        there, back = self.sums[y, i] / self.seen[y], self.sums[i, y] / self.seen[i]
        return max(-10.0, min(10.0, math.log(max(there, 1e-8)) - math.log(max(back, 1e-8))))

    def sample_loss(self, f: Tensor, y: int) -> Tensor:
        p = f.softmax(0)
        q = [p[y] if k == y else (1 - p[y]) / 9 for k in range(10)]
        l1 = sum(p[k] * torch.log(p[k] / q[k]) for k in range(10))
        margins = [torch.exp(f[i] - f[y] + self.shift(y, i)) for i in range(10) if i != y]
        l2 = torch.log(1 + torch.stack(margins).sum())
        return l1 + l2

    def loss(self, logits: Tensor, y: Tensor, y2: Tensor, lam: float) -> Tensor:
        each = [
            lam * self.sample_loss(f, int(a)) + (1 - lam) * self.sample_loss(f, int(b))
            for f, a, b in zip(logits, y, y2, strict=True)
        ]
        self.sums, self.seen = self.keep * self.sums, self.keep * self.seen
        for p, a, b in zip(logits.detach().softmax(1).double().numpy(), y.tolist(), y2.tolist(), strict=True):
            self.sums[a] += lam * p
            self.seen[a] += lam
            self.sums[b] += (1 - lam) * p
            self.seen[b] += 1 - lam
        return torch.stack(each).mean()

    def weight(self, client: int) -> float:
        members, tau = self.setup.members[client], 1 - 1e-5
        with torch.no_grad():
            outputs = self.model(self.inputs(self.dataset.x_train[members])).softmax(1).double().numpy()
        labels, rows = self.dataset.y_train[members], []
        for i in sorted(set(labels.tolist())):
            row = outputs[labels == i].mean(0)
            rows.append(sum(row[j] * math.log(row[j] / (tau if i == j else (1 - tau) / 9)) for j in range(10)))
        return 1 / (1 + math.exp(-1 / (sum(rows) / len(rows))))


@pytest.mark.parametrize(("name", "naive"), [("fedavg", Naive), ("fedacd", NaiveFedACD)])
def test_two_rounds_equal_a_naive_implementation(name: str, naive: type[Naive], digits: Dataset) -> None:
    prepared = setup(digits, method__name=name, train__weight_decay=1e-2)
    simulation, plain = Simulation(prepared), naive(prepared)
    for number in (1, 2):
        simulation.advance()
        plain.round(number)
    expected = dict(plain.model.named_parameters())
    for key, value in simulation.state.server.shared.params.items():
        torch.testing.assert_close(value, expected[key].detach(), rtol=1e-4, atol=1e-5)
        assert float((value - prepared.net.initial[key]).abs().max()) > 1e-3  # it did move


def test_weighting_by_samples(digits: Dataset) -> None:
    simulation = Simulation(setup(digits, method__name="fedavg", method__weighting="samples"))
    record = simulation.advance()
    sizes = [len(simulation.members[number]) for number in record["participants"]]
    assert record["weights"] == pytest.approx([size / sum(sizes) for size in sizes])


def test_record_of_a_round(digits: Dataset) -> None:
    simulation = Simulation(setup(digits, method__name="fedacd"))
    record = simulation.advance()
    num_weights = sum(w.numel() for w in simulation.net.initial.values())
    assert record["round"] == 1
    assert record["lr"] == 0.01
    assert record["bytes_down"] == 4 * num_weights
    assert record["bytes_up"] == 4 * num_weights + 4  # and one scalar, V
    assert len(record["participants"]) == len(record["weights"]) == len(record["told"]["V"]) == 3
    assert sum(record["weights"]) == pytest.approx(1)
    assert len(record["per_class"]) == 10
    assert record["accuracy"] == pytest.approx(np.mean(record["per_class"]))
    assert 0 < record["risk"] <= 1
    assert record["seconds"] > 0
    assert simulation.advance()["lr"] == pytest.approx(0.0099)


def test_metrics_of_a_round_against_plain_loops(digits: Dataset) -> None:
    """Accuracy on client labels, from the global model that the round made."""
    prepared = setup(digits, method__name="fedavg", train__rounds=1)
    simulation = Simulation(prepared)
    record = simulation.advance()
    naive = Naive(prepared)
    naive.model.load_state_dict(simulation.state.server.shared.params)
    with torch.no_grad():
        right = (naive.model(naive.inputs(digits.x_test)).argmax(1).numpy() == digits.y_test).astype(float)
    per_class = [right[digits.y_test == k].mean() for k in range(10)]
    assert record["per_class"] == pytest.approx(per_class)
    on_clients = []
    for members in prepared.members:
        labels = digits.y_train[members]
        on_clients.append(sum(per_class[k] * (labels == k).mean() for k in range(10)))
    assert record["accuracy_client"] == pytest.approx(np.mean(on_clients))


def test_evaluating_every_k_rounds_changes_no_weights(digits: Dataset) -> None:
    often, seldom = (Simulation(setup(digits, run__eval_every=every, train__rounds=3)) for every in (1, 2))
    records = [(often.advance(), seldom.advance()) for _ in range(3)]
    assert [record["accuracy"] is None for _, record in records] == [True, False, False]  # the last one always
    assert records[1][0]["accuracy"] == records[1][1]["accuracy"]
    torch.testing.assert_close(often.state.server, seldom.state.server, rtol=0, atol=0)


def test_methods_see_the_same_clients_and_start(digits: Dataset) -> None:
    one, other = (Simulation(setup(digits, method__name=name)) for name in ("fedavg", "fedacd"))
    torch.testing.assert_close(one.state.server.shared.params, other.state.server.shared.params, rtol=0, atol=0)
    assert one.advance()["participants"] == other.advance()["participants"]


def test_divergence_ends_the_run_with_a_reason(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match=r"client \d+: .* is not finite\. A smaller train\.lr"):
        fedacd.run(SMALL | {"train.clip": 0.0}, dataset=digits, method="fedavg", lr=1e30, out=str(tmp_path / "run"))
    assert (tmp_path / "run" / "config.toml").exists()


def test_bf16_is_close_to_fp32(digits: Dataset) -> None:
    exact, rough = (Simulation(setup(digits, run__precision=precision)) for precision in ("fp32", "bf16"))
    a, b = exact.advance(), rough.advance()
    assert a["train_loss"] != b["train_loss"]
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=0.05)
    assert all(w.dtype == torch.float32 for w in rough.state.server.shared.params.values())


def test_dropout_draws_the_same_after_a_restart(digits: Dataset) -> None:
    class Dropping(SmallCNN):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    first, second = (Simulation(prepare(SMALL, dataset=digits, model=Dropping)) for _ in range(2))
    first.advance()
    torch.rand(7)  # somebody else draws
    second.restore(first.state)
    a, b = first.advance(), second.advance()
    assert a["train_loss"] == b["train_loss"]
    # Evaluation drops nothing: the same weights in a model without dropout are right as often.
    plain = Simulation(prepare(SMALL, dataset=digits))
    counts = tally_of(lambda x: plain.method.predict(plain.net, first.state.server.shared, x), plain.test_images)
    assert a["per_class"] == per_class_accuracy(counts).tolist()
