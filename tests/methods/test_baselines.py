"""Each baseline: one number worked out by hand, and its formula against plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedacd import models
from fedacd.engine.local import Hyper, sgd
from fedacd.engine.underway import Fold
from fedacd.errors import ConfigError, ModelError
from fedacd.methods import (
    METHODS,
    Client,
    Did,
    FedAvg,
    FedDecorr,
    FedDyn,
    FedLC,
    FedNH,
    FedNova,
    FedNTD,
    FedProx,
    FedROD,
    Method,
    Reply,
    Scaffold,
    Server,
    Shared,
    Total,
    Trained,
)
from fedacd.methods.common import effective_steps
from fedacd.methods.feddecorr import correlation
from fedacd.methods.fedntd import not_true_kl

ONE = torch.ones(1)
RNG = np.random.default_rng
OUT = {"logits": torch.tensor([[0.5, 0.3, 0.2]]).log()}
ZERO = torch.tensor([0])


def loss_of(method: Method, client: Client, shared: Shared, now: Trained, **more: Tensor) -> float:
    return float(method.loss({**OUT, **more}, ZERO, ONE, now, shared, client))


def server_step(method: Method, server: Server, replies: list[Reply], num_clients: int) -> Server:
    fold = Fold(method, server.shared)
    for reply in replies:
        fold.add(reply)
    told = {name: torch.stack([reply.told[name] for reply in replies]) for name in replies[0].told}
    total = Total(fold.moved, fold.extra, told)
    return method.combine(None, server, total, num_clients, RNG(0))  # type: ignore[arg-type]


def reply(w: float, **told: float) -> Reply:
    return Reply({"w": torch.tensor([w])}, {}, {name: torch.tensor(value) for name, value in told.items()})


def test_fedavg(client: Client, shared: Shared, now: Trained) -> None:
    # -log .5; w = 1, replies 2 and 5 with 1 and 3 samples: 3.5 equally, (2 + 15)/4 = 4.25 by samples.
    assert loss_of(FedAvg(), client, shared, now) == pytest.approx(math.log(2))
    server = Server(Shared({"w": torch.tensor([1.0])}, {}), {})
    replies = [reply(2, n=1), reply(5, n=3)]
    assert server_step(FedAvg(), server, replies, 2).shared.params["w"].item() == pytest.approx(3.5)
    assert server_step(FedAvg(weighting="samples"), server, replies, 2).shared.params["w"].item() == pytest.approx(4.25)


def test_fedprox(client: Client, shared: Shared, now: Trained) -> None:
    # ||(2, -1)||^2 = 5, so log 2 + .2/2 * 5 = log 2 + .5.
    assert loss_of(FedProx(mu=0.2), client, shared, now) == pytest.approx(math.log(2) + 0.5)


def test_fednova(client: Client, shared: Shared, now: Trained, did: Did) -> None:
    _, _, told = FedNova().finish(now, shared, client, did)
    assert told["a"].item() == pytest.approx(2.5)
    # x = 1; x_1 = 3 with n = 1, a = 2; x_2 = 9 with n = 3, a = 8. d = -1 and -1; p = 1/4, 3/4; sum p a = 6.5.
    # x + 6.5 * (1/4 * 1 + 3/4 * 1) = 7.5. Equal p: (2 + 8)/2 * 1 = 5, so 6.
    server = Server(Shared({"w": torch.tensor([1.0])}, {}), {})
    replies = [reply(3, n=1, a=2), reply(9, n=3, a=8)]
    assert server_step(FedNova(), server, replies, 2).shared.params["w"].item() == pytest.approx(7.5)
    equal = server_step(FedNova(weighting="uniform"), server, replies, 2)
    assert equal.shared.params["w"].item() == pytest.approx(6)


def test_effective_steps_are_what_momentum_does(did: Did) -> None:
    """A constant gradient of 1 at learning rate 1 moves the weight by a: counted step by step."""
    for steps, momentum in ((1, 0.9), (7, 0.9), (40, 0.9), (5, 0.0)):
        moved, velocity = 0.0, 0.0
        for _ in range(steps):
            velocity = momentum * velocity + 1
            moved += velocity
        told = FedNova().finish(
            Trained({}, {}), Shared({}, {}), Client(ONE, {}, {}),
            did._replace(steps=torch.tensor(float(steps)), momentum=torch.tensor(momentum)),
        )[2]  # fmt: skip
        assert told["a"].item() == pytest.approx(moved, rel=1e-5)


def test_scaffold(client: Client, shared: Shared, now: Trained, did: Did) -> None:
    # c = (.5, 0), c_m = (.1, .2): the loss gets <(.4, -.2), (3, 1)> = 1, so its gradient gets (.4, -.2).
    shared = shared._replace(extra={"w": torch.tensor([0.5, 0.0])})
    client = client._replace(memo={"w": torch.tensor([0.1, 0.2])})
    assert loss_of(Scaffold(), client, shared, now) == pytest.approx(math.log(2) + 1)
    # (x - x_m)/(lr a) = (-2, 1)/(.5 * 2.5) = (-1.6, .8); the change is that less c = (-2.1, .8), sent a = 2.5 times;
    # c_m+ = (.1 - 2.1, .2 + .8) = (-2, 1).
    after, change, told = Scaffold().finish(now, shared, client, did)
    assert change["w"].tolist() == pytest.approx([-5.25, 2])
    assert after.memo["w"].tolist() == pytest.approx([-2, 1])
    assert told["work"].item() == pytest.approx(2.5)
    assert Scaffold(weighting="samples").finish(now, shared, client, did)[2]["work"].item() == pytest.approx(17 * 2.5)
    # Server: x = mean of replies; c + change/K with K = 4 clients, all of whose work is alike: (.5 - .525, .2).
    server = Server(shared, {"work": torch.tensor(5.0).double(), "replies": torch.tensor(2.0).double()})
    combined = server_step(Scaffold(), server, [Reply(now.params, change, told)], 4)
    assert combined.shared.params["w"].tolist() == [3, 1]
    assert combined.shared.extra["w"].tolist() == pytest.approx([-0.025, 0.2])
    assert [value.item() for value in combined.hidden.values()] == pytest.approx([7.5, 3])


# Three clients with the objectives 1/2 sum of CURVED (w - LOWEST)^2.
CURVED = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.5, 0.5]]).double()
LOWEST = torch.tensor([[5.0, 0.0], [0.0, -5.0], [-3.0, 4.0]]).double()


def federate(method: Method, steps: tuple[int, ...], momentum: float, present: int) -> tuple[Server, list[Client]]:
    """Full gradients, three clients of which `present` take part in turn, until nothing moves any more."""
    w = torch.zeros(2).double()
    shared = Shared({"w": w}, {"w": w} if isinstance(method, Scaffold) else {})
    server = Server(shared, {"work": w.sum(), "replies": w.sum()})
    clients = [Client(ONE, {}, dict(shared.extra)) for _ in steps]
    lr, rho = torch.tensor(0.1 * (1 - momentum)).double(), torch.tensor(momentum).double()
    hyper = Hyper(lr, rho, torch.zeros(()), torch.tensor(math.inf))
    for number in range(60 * 3 // present):
        replies = []
        for m in sorted((number + k) % 3 for k in range(present)):
            now, velocity = server.shared.params, {"w": torch.zeros_like(w)}
            for _ in range(steps[m]):
                leaf = now["w"].clone().requires_grad_()
                loss = method.loss(OUT, ZERO, ONE, Trained({"w": leaf}, {}), server.shared, clients[m])
                loss = loss + (CURVED[m] * (leaf - LOWEST[m]).square()).sum() / 2
                now, velocity = sgd(now, {"w": torch.autograd.grad(loss, leaf)[0]}, velocity, hyper)
            tau = torch.tensor(float(steps[m])).double()
            did = Did(torch.tensor(1.0), tau, tau, lr, rho)
            clients[m], extra, told = method.finish(Trained(now, {}), server.shared, clients[m], did)
            replies.append(Reply(now, extra, told))
        server = server_step(method, server, replies, 3)
    return server, clients


@pytest.mark.parametrize(
    ("steps", "momentum", "present"), [((10, 10, 10), 0.0, 3), ((2, 10, 25), 0.0, 2), ((2, 10, 25), 0.9, 3)]
)
def test_scaffold_finds_the_optimum_that_drift_hides_from_fedavg(
    steps: tuple[int, ...], momentum: float, present: int
) -> None:
    """What the publication proves. A client counts by its steps, as in a mean of models."""
    a = effective_steps(torch.tensor(steps).double(), torch.tensor(momentum).double())[:, None]
    optimum = (a * CURVED * LOWEST).sum(0) / (a * CURVED).sum(0)
    found = federate(Scaffold(), steps, momentum, present)[0].shared
    assert found.params["w"].tolist() == pytest.approx(optimum.tolist(), abs=1e-4)
    assert found.extra["w"].tolist() == pytest.approx([0, 0], abs=1e-4)
    drifted = federate(FedAvg(), steps, momentum, 3)[0].shared.params["w"]
    assert (drifted - optimum).norm() > 0.1


def test_scaffolds_corrections_cancel_whatever_the_clients_steps(did: Did) -> None:
    """The sum of a_m (c - c_m) over all clients is 0, so a client of two steps does not lead one of two hundred."""
    method, w = Scaffold(), torch.zeros(1)
    server = Server(Shared({"w": w}, {"w": w}), {"work": w.sum().double(), "replies": w.sum().double()})
    replies, moved_by = [], []
    for steps, moved in ((2.0, -3.0), (200.0, 1.0)):
        work = did._replace(steps=torch.tensor(steps), momentum=torch.tensor(0.0))
        kept, extra, told = method.finish(Trained({"w": w + moved}, {}), server.shared, Client(ONE, {}, {"w": w}), work)
        replies.append(Reply({"w": w + moved}, extra, told))
        moved_by.append((steps, kept.memo["w"]))
    c = server_step(method, server, replies, 2).shared.extra["w"]
    assert sum(a * (c - c_m) for a, c_m in moved_by).item() == pytest.approx(0, abs=1e-5)  # type: ignore[union-attr]
    # c_m = 3 and -.01: c = (2 * 3 - 200 * .01)/202, where the plain mean would be 1.495.
    assert c.item() == pytest.approx(4 / 202)


def test_scaffold_correction_is_exactly_added_to_the_gradient(client: Client, shared: Shared) -> None:
    shared = shared._replace(extra={"w": torch.tensor([0.5, 0.0])})
    client = client._replace(memo={"w": torch.tensor([0.1, 0.2])})
    w = torch.tensor([3.0, 1.0], requires_grad=True)
    loss = Scaffold().loss(OUT, ZERO, ONE, Trained({"w": w}, {}), shared, client)
    assert torch.autograd.grad(loss, w)[0].tolist() == pytest.approx([0.4, -0.2])


def test_feddyn(client: Client, shared: Shared, now: Trained, did: Did) -> None:
    # g = (.1, .2), alpha = .4: -<g, (3, 1)> + .2 * ||(2, -1)||^2 = -.5 + 1.
    client = client._replace(memo={"w": torch.tensor([0.1, 0.2])})
    method = FedDyn(alpha=0.4)
    assert loss_of(method, client, shared, now) == pytest.approx(math.log(2) + 0.5)
    # g - alpha (w_m - x) = (.1 - .8, .2 + .4).
    assert method.finish(now, shared, client, did)[0].memo["w"].tolist() == pytest.approx([-0.7, 0.6])
    # h = (1, 1), K = 4: h - .1 * (2, -1) = (.8, 1.1); x = mean of w_m - h/.4 = (3 - 2, 1 - 2.75).
    server = Server(shared, {"w": torch.ones(2)})
    combined = server_step(method, server, [Reply(now.params, {}, {"n": torch.tensor(17.0)})], 4)
    assert combined.hidden["w"].tolist() == pytest.approx([0.8, 1.1])
    assert combined.shared.params["w"].tolist() == pytest.approx([1, -1.75])


def test_fedlc(client: Client, shared: Shared, now: Trained) -> None:
    # 16^(-1/4) = .5 and 1^(-1/4) = 1; class 2 is missing: log(1 + .3/.5 * e^(-1 + .5)) = log(1 + .6 e^-.5).
    assert loss_of(FedLC(), client, shared, now) == pytest.approx(math.log(1 + 0.6 * math.exp(-0.5)))
    # tau = 0 leaves the softmax over the classes held: log(1 + .6).
    assert loss_of(FedLC(tau=0), client, shared, now) == pytest.approx(math.log(1.6))


def test_fedrod(client: Client, shared: Shared) -> None:
    # Balanced: .5 * 16 against .3 * 1 and nothing for class 2: log(1 + .3/8). Personal: -log .2 with outputs given.
    personal = torch.tensor([[0.2, 0.3, 0.5]]).log()
    got = loss_of(FedROD(), client, shared, Trained({}, {}), personal=personal)
    assert got == pytest.approx(math.log(1 + 0.3 / 8) + math.log(5), rel=1e-6)


def test_fedrod_trains_the_personal_head_alone_by_its_loss() -> None:
    net = models.build("small-cnn", (1, 8, 8), 3, {}, seed=0)
    method = FedROD()
    client = method.init_client(net, Shared(net.initial, {}), torch.tensor([2, 1, 1]))
    x, y = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    params = {name: w.clone().requires_grad_() for name, w in net.initial.items()}
    now = Trained(params, {"head": client.private["head"].clone().requires_grad_()})
    out = method.outputs(net, now, Shared(net.initial, {}), client, x)
    torch.testing.assert_close(out["personal"], out["logits"])  # the personal head starts at zero
    assert not torch.autograd.grad(
        nn.functional.cross_entropy(out["personal"], y), list(params.values()), retain_graph=True, allow_unused=True
    )[0]
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(out["personal"], y), now.private["head"])
    assert float(slope.abs().max()) > 0


def test_fedntd(client: Client, shared: Shared, now: Trained) -> None:
    # y = 0. Not-true student: (.3, .2)/.5 = (.6, .4); teacher (.1, .3)/.4 = (.25, .75).
    # KL = .25 log(.25/.6) + .75 log(.75/.4) = -.2188672 + .4714565 = .2525893.
    teacher = torch.tensor([[0.6, 0.1, 0.3]]).log()
    assert not_true_kl(teacher, OUT["logits"], ZERO, 1.0).item() == pytest.approx(0.2525893, abs=1e-6)
    got = loss_of(FedNTD(beta=2), client, shared, now, teacher=teacher)
    assert got == pytest.approx(math.log(2) + 2 * 0.2525893, abs=1e-6)
    # tau = 2 halves the logits: student (sqrt .3, sqrt .2), teacher (sqrt .1, sqrt .3), and counts four times.
    s, t = [math.sqrt(v) for v in (0.3, 0.2)], [math.sqrt(v) for v in (0.1, 0.3)]
    kl = sum(b / sum(t) * math.log((b / sum(t)) / (a / sum(s))) for a, b in zip(s, t, strict=True))
    got = loss_of(FedNTD(tau=2), client, shared, now, teacher=teacher)
    assert got == pytest.approx(math.log(2) + 4 * kl, abs=1e-6)


def test_feddecorr() -> None:
    # Two features of three samples: (1, 2, 3) and (1, 3, 2). Normalised: (-1, 0, 1) and (-1, 1, 0); M_12 = 1.
    # The mean of the squared off-diagonal entries is 1, over N = 3.
    features = torch.tensor([[1.0, 1], [2, 3], [3, 2]])
    assert correlation(features, torch.ones(3)).item() == pytest.approx(1 / 3, abs=1e-6)
    assert correlation(features[:1], torch.ones(1)).item() == 0
    padded = torch.cat([features, torch.full((2, 2), 9.0)])
    assert correlation(padded, torch.tensor([1.0, 1, 1, 0, 0])).item() == pytest.approx(1 / 3, abs=1e-6)
    assert FedDecorr.defaults("cifar100", "cnn")["method.coef"] == 0.05
    assert "method.coef" not in FedDecorr.defaults("cifar10", "cnn")


def test_feddecorr_against_loops() -> None:
    f = np.random.default_rng(0).normal(size=(6, 4))
    z = (f - f.mean(0)) / np.sqrt(f.var(0, ddof=1) + 1e-8)
    total = sum(float(z[:, i] @ z[:, j]) ** 2 for i in range(4) for j in range(4) if i != j)
    got = correlation(torch.from_numpy(f), torch.ones(6, dtype=torch.float64))
    assert got.item() == pytest.approx(total / 12 / 6)


def test_fednh(did: Did) -> None:
    # W_0 = (1, 0), W_1 = (0, 1). Sums of z: class 0 (0, 2) from two samples, class 1 nobody.
    # W_0 <- (.9, .1)/|(.9, .1)| = (.9, .1)/.9055385; W_1 stays.
    method = FedNH()
    server = Server(Shared({"scale": torch.tensor(1.0)}, {"prototypes": torch.eye(2)}), {})
    sums = {"features": torch.tensor([[0.0, 2], [0, 0]]), "counts": torch.tensor([2.0, 0])}
    combined = server_step(method, server, [Reply({"scale": torch.tensor(3.0)}, sums, {"n": torch.tensor(2.0)})], 4)
    W = combined.shared.extra["prototypes"]
    assert W[0].tolist() == pytest.approx([0.9938837, 0.1104315], abs=1e-6)
    assert W[1].tolist() == [0, 1]
    assert combined.shared.params["scale"].item() == 3


def test_fednh_starts_with_orthogonal_rows_and_measures_by_angle() -> None:
    net = models.build("small-cnn", (1, 8, 8), 5, {}, seed=0)
    method = FedNH(scale=2.0)
    shared = method.init_server(net, RNG(0)).shared
    W = shared.extra["prototypes"]
    torch.testing.assert_close(W @ W.mT, torch.eye(5), atol=1e-6, rtol=0)
    assert not set(net.head_names) & set(shared.params)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    f = net.features(net.initial, x)
    expected = torch.stack([2 * (row / row.norm()) @ W.mT for row in f])
    torch.testing.assert_close(method.predict(net, shared, x), expected)
    assert FedNH.defaults("tiny-imagenet", "resnet18")["method.scale"] == 20


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("fedprox", "mu", -1), ("fednova", "weighting", "score"), ("creff", "head_steps", 0), ("fedrod", "gamma", -1),
        ("fedntd", "tau", 0), ("feddecorr", "coef", -0.1), ("fedlc", "tau", math.nan), ("fednh", "rho", 1.1),
        ("feddyn", "alpha", 0), ("scaffold", "weighting", "score"),
    ],
)  # fmt: skip
def test_a_hyper_parameter_out_of_range_is_named(name: str, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"method\.{field} = "):
        METHODS[name].build({field: value})


class Headless(nn.Module):
    """Its forward does not end in a linear layer."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 2 * self.linear(x.flatten(1)).tanh()
        return logits


@pytest.mark.parametrize("name", METHODS)
def test_a_model_without_features_is_refused_where_they_are_needed(name: str) -> None:
    from fedacd.engine.setup import prepare

    values = {"data.name": "digits", "method.name": name, "partition.clients": 3}
    if METHODS[name].needs_features:
        with pytest.raises(ModelError, match=f"method {METHODS[name].title} works on features"):
            prepare(values, model=Headless)
    else:
        prepare(values, model=Headless)


@pytest.mark.parametrize(
    ("method", "told", "reason"),
    [
        (FedNova(), {"a": 1.0}, None),
        (FedNova(), {"a": 1 - 1e-5}, None),  # a single step, rounded
        (FedNova(), {"a": 0.0}, "the number of steps a is 0, not 1 or more"),
        (FedNova(), {"a": math.nan}, "a is not finite"),
        (FedNova(), {}, "the number of steps a is missing"),
        (Scaffold(), {"work": 0.5}, None),
        (Scaffold(), {"work": 0.0}, "the work is 0, not above 0"),
        (Scaffold(), {"work": -1.0}, "the work is -1, not above 0"),
        (Scaffold(), {"work": math.inf}, "work is not finite"),
        (Scaffold(), {}, "the work is missing"),
    ],
)
def test_check_of_the_scalars_that_the_server_divides_by(
    method: Method, told: dict[str, float], reason: str | None
) -> None:
    assert method.check(reply(1.0, n=5.0, **told), Shared({"w": torch.zeros(1)}, {})) == reason
