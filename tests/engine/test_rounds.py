"""Whole rounds against a second implementation: plain modules, torch's optimiser, loops; from the formulas."""

import ctypes
import math
import subprocess
import sys
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
from fedacd.engine.setup import Setup, arithmetic, prepare
from fedacd.engine.underway import at_rest
from fedacd.errors import UpdateError
from fedacd.methods import Client, FedAvg, Server, Total
from fedacd.metrics import per_class_accuracy
from fedacd.models import SmallCNN
from fedacd.models.net import Net

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

    def augmented(self, images: Any, shift: Any, flip: Any) -> Tensor:
        """Cropped out of a black frame, then mirrored."""
        size, pad, made = images.shape[1], self.setup.config.data.crop or 0, []
        for image, (row, column), mirror in zip(images, shift, flip, strict=True):
            framed = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))[row : row + size, column : column + size]
            made.append(framed[:, ::-1] if mirror else framed)
        return self.inputs(np.stack(made))

    def round(self, number: int) -> dict[str, float]:
        """One round; returns the metrics of its local models and of the global one."""
        config, start = self.setup.config, {k: v.clone() for k, v in self.model.state_dict().items()}
        total, weight_sum = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in start.items()}, 0.0
        risks, own, test, softer = [], [], [], []
        chosen = participants(config.run.seed, number, config.partition.clients, config.train.participation)
        for client in chosen.tolist():
            self.model.load_state_dict(start)
            weight = self.train(number, client)
            weight_sum += weight
            for key, value in self.model.state_dict().items():
                total[key] += weight * value.double()
            members = self.setup.members[client]
            risks.append(1 - self.on_client_labels())
            own.append(np.mean(self.kl_rows(self.dataset.x_train[members], self.dataset.y_train[members])))
            test.append(np.mean(self.kl_rows(self.dataset.x_test, self.dataset.y_test)))
            softer.append(np.mean(self.kl_rows(self.dataset.x_test, self.dataset.y_test, tau=0.99)))
        self.model.load_state_dict({key: value / weight_sum for key, value in total.items()})
        return {
            "risk": float(np.mean(risks)),
            "kl_local": float(np.mean(own)),
            "kl_test": float(np.mean(test)),
            "kl_test_99": float(np.mean(softer)),
            "accuracy": float(np.mean(self.per_class())),
            "accuracy_client": self.on_client_labels(),
        }

    def outputs(self, images: Any) -> Any:
        with torch.no_grad():
            return self.model(self.inputs(images)).softmax(1).double().numpy()

    def per_class(self) -> list[float]:
        right = self.outputs(self.dataset.x_test).argmax(1) == self.dataset.y_test
        return [float(right[self.dataset.y_test == k].mean()) for k in range(10)]

    def on_client_labels(self) -> float:
        """The model's test accuracy weighted by every client's labels."""
        per_class, found = self.per_class(), []
        for members in self.setup.members:
            labels = self.dataset.y_train[members]
            found.append(sum(per_class[k] * (labels == k).mean() for k in range(10)))
        return float(np.mean(found))

    def kl_rows(self, images: Any, labels: Any, tau: float = 1 - 1e-5) -> list[float]:
        """KL(P||Q) of every class present."""
        outputs, rows = self.outputs(images), []
        for i in sorted(set(labels.tolist())):
            row = outputs[labels == i].mean(0)
            rows.append(sum(row[j] * math.log(row[j] / (tau if i == j else (1 - tau) / 9)) for j in range(10)))
        return rows

    def train(self, number: int, client: int) -> float:
        config, members = self.setup.config, self.setup.members[client]
        labels = self.setup.dataset.y_train[members]
        plan = local_plan(config.run.seed, number, client, labels, config.train, config.data)
        lr = config.train.lr * config.train.lr_decay ** (number - 1)
        optimiser = torch.optim.SGD(
            self.model.parameters(), lr=lr, momentum=config.train.momentum, weight_decay=config.train.weight_decay or 0
        )
        self.begin(client, plan.epoch_steps)
        for step in range(plan.steps):
            if step % plan.epoch_steps == 0:
                self.epoch(client)
            size, lam = plan.size[step], float(plan.lam[step])
            indices, partner = members[plan.order[step, :size]], plan.partner[step, :size]
            x = self.augmented(self.dataset.x_train[indices], plan.shift[step, :size], plan.flip[step, :size])
            y = torch.tensor(self.dataset.y_train[indices])
            loss = self.loss(self.model(lam * x + (1 - lam) * x[partner]), y, y[partner], lam)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), config.train.clip)
            optimiser.step()
        return self.weight(client)

    def epoch(self, client: int) -> None:
        pass

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
        self.keep, self.options = 1 - 1 / max(epoch_steps, 2), self.setup.config.method.options
        self.sums, self.seen = np.zeros((10, 10)), np.zeros(10)

    def shift(self, y: int, i: int) -> float:
        if i == y:
            return 0.0
        if self.held[i] == 0:
            return math.log(1e-3)
        if self.seen[y] == 0 or self.seen[i] == 0:
            return 0.0
        there, back = self.sums[y, i] / self.seen[y], self.sums[i, y] / self.seen[i]
        return max(-10.0, min(10.0, math.log(max(there, 1e-8)) - math.log(max(back, 1e-8))))

    def sample_loss(self, f: Tensor, y: int) -> Tensor:
        p = f.softmax(0)
        if self.options["flatten"] == "shifted":
            p = (f + torch.tensor([self.shift(y, i) for i in range(10)])).softmax(0)
        wrong = torch.stack([p[k] for k in range(10) if k != y]).sum()  # 1 - p[y] would be rounded
        q = [p[y] if k == y else wrong / 9 for k in range(10)]
        l1 = sum(p[k] * torch.log(p[k] / q[k]) for k in range(10))
        margins = [torch.exp(f[i] - f[y] + self.shift(y, i)) for i in range(10) if i != y]
        l2 = torch.log(1 + torch.stack(margins).sum())
        return l1 + l2

    def loss(self, logits: Tensor, y: Tensor, y2: Tensor, lam: float) -> Tensor:
        outputs = logits.detach().softmax(1).double().numpy()
        each = []
        for weight, labels in ((lam, y.tolist()), (1 - lam, y2.tolist())):
            if self.options["refresh"] == "batch":
                self.sums, self.seen = np.zeros((10, 10)), np.zeros(10)
                for p, label in zip(outputs, labels, strict=True):
                    self.sums[label] += p
                    self.seen[label] += 1
                self.held = [int(n) for n in self.seen]
            each += [weight * self.sample_loss(f, label) for f, label in zip(logits, labels, strict=True)]
        if self.options["refresh"] == "step":
            self.sums, self.seen = self.keep * self.sums, self.keep * self.seen
            for p, a, b in zip(outputs, y.tolist(), y2.tolist(), strict=True):
                self.sums[a] += lam * p
                self.seen[a] += lam
                self.sums[b] += (1 - lam) * p
                self.seen[b] += 1 - lam
        return torch.stack(each).sum() / len(y)

    def epoch(self, client: int) -> None:
        if self.options["refresh"] == "epoch":
            members = self.setup.members[client]
            outputs, labels = self.outputs(self.dataset.x_train[members]), self.dataset.y_train[members]
            self.sums = np.stack([outputs[labels == k].sum(0) for k in range(10)])
            self.seen = np.array([(labels == k).sum() for k in range(10)], float)

    def weight(self, client: int) -> float:
        options, tau = self.options, 1 - 1e-5
        members = self.setup.members[client]
        rows = self.kl_rows(self.dataset.x_train[members], self.dataset.y_train[members])
        if options["matrix"] == "running":
            rows = []
            for i in range(10):
                if self.held[i]:
                    row = self.sums[i] / self.seen[i]
                    rows.append(sum(row[j] * math.log(row[j] / (tau if i == j else (1 - tau) / 9)) for j in range(10)))
        kl = sum(rows) if options["score"] == "sum" else sum(rows) / len(rows)
        return 1 / (1 + math.exp(-1 / kl))


@pytest.mark.parametrize(
    ("name", "naive", "settings"),
    [
        ("fedavg", Naive, {}),
        ("fedavg", Naive, {"data__crop": 1, "data__flip": True}),
        ("fedavg", Naive, {"train__clip": 0.05}),
        ("fedacd", NaiveFedACD, {}),
        ("fedacd", NaiveFedACD, {"method__refresh": "epoch", "method__score": "sum", "data__crop": 1}),
        ("fedacd", NaiveFedACD, {"train__mixup": False}),
        ("fedacd", NaiveFedACD, {"method__flatten": "outputs"}),
        ("fedacd", NaiveFedACD, {"method__refresh": "step", "method__flatten": "outputs"}),
        ("fedacd", NaiveFedACD, {"method__refresh": "step", "method__matrix": "running", "train__mixup": False}),
    ],
    ids=str,
)
def test_two_rounds_equal_a_naive_implementation(
    name: str, naive: type[Naive], settings: dict[str, Any], digits: Dataset
) -> None:
    """Weights, and every metric of both rounds."""
    few = {"partition__clients": 12, "train__participation": 0.25}  # a loop over samples takes its time
    prepared = setup(digits, method__name=name, train__weight_decay=1e-2, **few, **settings)
    simulation, plain = Simulation(prepared), naive(prepared)
    for number in (1, 2):
        record = simulation.advance()
        for key, value in plain.round(number).items():
            # Rounding may turn a test image or two out of 359.
            assert record[key] == pytest.approx(value, rel=3e-3, abs=6e-3), key
    params = dict(plain.model.named_parameters())
    for key, w in simulation.state.server.shared.params.items():
        torch.testing.assert_close(w, params[key].detach(), rtol=1e-3, atol=1e-4)
        assert float((w - prepared.net.initial[key]).abs().max()) > 1e-3  # it did move


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


def test_train_loss_is_the_mean_over_samples(digits: Dataset) -> None:
    """At a learning rate of next to nothing: the cross entropy of the initial model on the participants' samples."""
    prepared = setup(digits, method__name="fedavg", train__lr=1e-12, train__epochs=1)
    record, naive = Simulation(prepared).advance(), Naive(prepared)
    losses = []
    for client in record["participants"]:
        members = prepared.members[client]
        p = naive.outputs(digits.x_train[members])[np.arange(len(members)), digits.y_train[members]]
        losses.append(-np.log(p).mean())
    assert record["train_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


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


def test_weights_that_blow_up_but_stay_finite_end_the_run_too(digits: Dataset, tmp_path: Path) -> None:
    """One step a round, so that no client trains on what it made."""
    settings = SMALL | {"train.clip": 0.0, "train.epochs": 1, "train.batch_size": 2000}
    for every in (1, 10):
        with pytest.raises(UpdateError, match=r"cannot be computed\. A smaller train\.lr|is not finite"):
            fedacd.run(
                settings | {"run.eval_every": every, "train.rounds": 5},
                dataset=digits, method="fedavg", lr=1e13, out=str(tmp_path / str(every)),
            )  # fmt: skip


class Infinite(FedAvg):
    """A server's step that leaves its range."""

    def combine(self, net: Net, server: Server, total: Total, num_clients: int, rng: np.random.Generator) -> Server:
        return super().combine(net, server, total, num_clients, rng)._replace(hidden={"h": torch.tensor([math.inf])})


def test_a_server_that_is_not_finite_ends_the_run(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match=r"round 1: hidden tensors of the server are not finite\."):
        fedacd.run(SMALL, dataset=digits, method=Infinite(), out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_tf32_only_where_it_is_asked_for_and_the_callers_choice_comes_back() -> None:
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for precision, expected in (("fp32", "ieee"), ("bf16", "ieee"), ("tf32", "tf32")):
        with arithmetic(precision):
            assert [switch.fp32_precision for switch in switches] == [expected, expected]
        assert [switch.fp32_precision for switch in switches] == before


FAULTS = """
import resource, torch
from fedacd.engine.setup import arithmetic
from fedacd.models import CNN

def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        torch.autograd.grad(model(x).sum(), list(model.parameters()))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

model, x = CNN((3, 32, 32), 10), torch.randn(64, 3, 32, 32)
with arithmetic("fp32", threads=1):
    faults(5)
    print(faults(10))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_steps_memory_is_kept_for_the_next_one() -> None:
    """Ten steps make 35,000 page faults and more where it is not. In a process of its own: what others have left behind
    decides where tensors lie."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 6000


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
    shared = first.state.server.shared
    counts = tally_of(plain.net, plain.method, shared, plain.images, plain.test)
    assert a["per_class"] == per_class_accuracy(counts).tolist()


def test_clients_of_a_gpu_rest_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 1)  # there may be no GPU here
    clients = [Client(torch.zeros(2), {"head": torch.zeros(3)}, {"c": torch.zeros(1)})]
    (pinned,) = at_rest(clients)
    assert isinstance(pinned, Client)
    assert [tensor.tolist() for tensor in (pinned.counts, pinned.private["head"], pinned.memo["c"])] == [
        [1, 1], [1, 1, 1], [1],
    ]  # fmt: skip
