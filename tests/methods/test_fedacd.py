"""FedACD on three classes, with every number worked out by hand.

The client holds classes 0 and 1; its samples have the outputs

    class 0: (.5, .3, .2) and (.7, .1, .2)      class 1: (.4, .5, .1)

so P_0 = (.6, .2, .2), P_1 = (.4, .5, .1), and class 2 is missing.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedacd.errors import ConfigError
from fedacd.methods import Client, Did, FedACD, Reply, Shared, Total, Trained
from fedacd.methods.base import Server
from fedacd.methods.common import kl_to_template, mean_outputs
from fedacd.methods.fedacd import flatness, log_ratio

OUTPUTS = torch.tensor([[0.5, 0.3, 0.2], [0.7, 0.1, 0.2], [0.4, 0.5, 0.1]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1])
COUNTS = torch.tensor([2, 1, 0])
P = torch.tensor([[0.6, 0.2, 0.2], [0.4, 0.5, 0.1], [0, 0, 0]], dtype=torch.float64)
SEEN = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
NOTHING = Trained({}, {})
SHARED = Shared({}, {})


def surveyed(method: FedACD) -> Client:
    """The client after a clean pass over its three samples."""
    client = method.begin(SHARED, Client(COUNTS, {}, {}))
    target = torch.eye(3, dtype=torch.float64)[LABELS]
    sums = method.survey({"logits": OUTPUTS.log()}, target, torch.ones(3, dtype=torch.float64), client)
    return method.absorb(client, sums, "end")


def did(epoch_steps: float) -> Did:
    one = torch.tensor(1.0)
    return Did(n=3 * one, steps=one, epoch_steps=epoch_steps * one, lr=one, momentum=one)


def test_l1_by_hand() -> None:
    # y = 0, p = (.5, .3, .2): q = (.5, .25, .25), so .3 log(1.2) + .2 log(.8) = .0546965 - .0446287.
    assert flatness(OUTPUTS[:1].log(), LABELS[:1]).item() == pytest.approx(0.0100678, abs=1e-7)
    # Flat already: p = (.8, .1, .1) is its own target.
    assert flatness(torch.tensor([[0.8, 0.1, 0.1]]).log(), LABELS[:1]).item() == pytest.approx(0, abs=1e-7)


def naive_l1(logits: Tensor, y: int) -> float:
    """The paper's sum, term by term."""
    p = [math.exp(f - max(logits.tolist())) for f in logits.tolist()]
    p = [value / sum(p) for value in p]
    q = [p[y] if k == y else (1 - p[y]) / (len(p) - 1) for k in range(len(p))]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@given(st.integers(2, 12), st.integers(0, 2**31), st.floats(0.1, 8))
def test_l1_closed_form_is_the_papers_sum(num_classes: int, seed: int, scale: float) -> None:
    logits = scale * torch.randn(4, num_classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = torch.arange(4) % num_classes
    expected = torch.tensor([naive_l1(f, int(label)) for f, label in zip(logits, y, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(flatness(logits, y), expected, rtol=1e-6, atol=1e-9)


def test_l1_stays_finite_for_a_sure_model() -> None:
    logits = torch.tensor([[200.0, 0.0, -3.0]], requires_grad=True)
    loss = flatness(logits, torch.tensor([0])).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0
    assert bool(gradient.isfinite().all())


def test_gradients_in_float64() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0])
    assert torch.autograd.gradcheck(lambda f: flatness(f, y), logits)
    method = FedACD(lam=0.7, refresh="step")
    client = surveyed(method)
    y, w = torch.tensor([0, 1, 0, 1, 1]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    three = logits[:, :3].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: method.loss({"logits": f}, y, w, NOTHING, SHARED, client), three)


def test_the_gradient_through_q_cancels() -> None:
    """q held fixed or not, the gradient of the sum is the same, so that the closed form is the paper's loss."""
    logits = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y = torch.arange(6) % 5
    p = logits.softmax(-1)
    true = torch.eye(5, dtype=torch.bool)[y]
    p_y = p[true][:, None]
    q = torch.where(true, p_y, (1 - p_y) / 4).detach()
    (fixed,) = torch.autograd.grad((p * (p / q).log()).sum(), logits)
    (closed,) = torch.autograd.grad(flatness(logits, y).sum(), logits)
    torch.testing.assert_close(closed, fixed, rtol=0, atol=1e-10)


def test_matrix_by_hand() -> None:
    client = surveyed(FedACD())
    torch.testing.assert_close(mean_outputs(client.memo["sums"], client.memo["seen"]), P)
    torch.testing.assert_close(client.memo["seen"], SEEN)


def test_log_ratio_by_hand() -> None:
    # log(P_01/P_10) = log(.2/.4); class 2 is missing, so its column is the constant; the diagonal does not shift.
    c = math.log(1e-5)
    expected = [[0, -math.log(2), c], [math.log(2), 0, c], [0, 0, 0]]
    torch.testing.assert_close(log_ratio(P, SEEN, COUNTS, 1e-5), torch.tensor(expected, dtype=torch.float64))


def test_log_ratio_is_zero_until_both_rows_are_known_and_is_clamped() -> None:
    counts = torch.tensor([2, 1, 4])
    ratio = log_ratio(P, SEEN, counts, 1e-5)  # class 2 is held, but none of it was seen yet
    assert ratio[0, 2] == ratio[2, 0] == ratio[1, 2] == 0
    sure = torch.tensor([[1 - 1e-12, 1e-12], [0.5, 0.5]], dtype=torch.float64)
    # 1e-12 counts as 1e-8: log(1e-8/.5) = -17.7, held at -10.
    assert log_ratio(sure, torch.ones(2), torch.ones(2), 1e-5).tolist() == [[0, -10], [10, 0]]


def test_l2_by_hand() -> None:
    # y = 0, p = (.5, .3, .2): log(1 + .3/.5 * 1/2 + .2/.5 * 1e-5) = log(1.300004), and L1 = .0100678.
    # y = 1, p = (.4, .5, .1): log(1 + .4/.5 * 2 + .1/.5 * 1e-5) = log(2.600002); q = (.25, .5, .25), so
    # L1 = .4 log(1.6) + .1 log(.4) = .1880015 - .0916291 = .0963724.
    method = FedACD(lam=2.0, missing=1e-5, refresh="step", flatten="outputs")
    client = surveyed(method)
    w = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    loss = method.loss({"logits": OUTPUTS.log()}, LABELS, w, NOTHING, SHARED, client)
    expected = (0.0100678 + 2 * math.log(1.300004) + 0.0963724 + 2 * math.log(2.600002)) / 2
    assert loss.item() == pytest.approx(expected, abs=1e-7)


def test_losses_of_a_batch_with_its_own_matrix_by_hand() -> None:
    # The three samples are a batch: its P is P, and class 2, which is not in it, counts as missing.
    # y = 0, p = (.5, .3, .2): shifted by (1, 1/2, 1e-5) it is (.5, .15, .000002)/.650002; L2 = log(1.300004) as above.
    # The others are r = (.9999867, .0000133), with entropy .0000133 (1 - log(.0000133)) = .0001630; so
    # L1 = .150002/.650002 * (log 2 - .0001630) = .1599210.
    # y = 1, p = (.4, .5, .1): shifted by (2, 1, 1e-5) it is (.8, .5, .000001)/1.300001; L2 = log(2.600002).
    # The others are r = (.99999875, .00000125), with entropy .0000182; L1 = .800001/1.300001 * (log 2 - .0000182) =
    # .4265410.
    method = FedACD(lam=2.0, missing=1e-5)
    client = method.begin(SHARED, Client(COUNTS + 1, {}, {}))  # it holds class 2, but not in this batch
    logits = OUTPUTS.log()[[0, 1, 2, 2]]
    y, w = torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, 1, 1, 0], dtype=torch.float64)  # the last is padding
    loss = method.loss({"logits": logits}, y, w, NOTHING, SHARED, client)
    # y = 0, p = (.7, .1, .2): shifted it is (.7, .05, .000002)/.750002; L2 = log(1 + .05/.7 + .000002/.7); the others
    # are r = (.99996, .00004), with entropy .0004450; L1 = .050002/.750002 * (log 2 - .0004450) = .0461820.
    L1 = 0.1599210 + 0.0461820 + 0.4265410
    L2 = math.log(1.300004) + math.log(1.0714314) + math.log(2.600002)
    assert loss.item() == pytest.approx((L1 + 2 * L2) / 3, abs=1e-6)


def test_no_gradient_flows_through_the_matrix_of_the_batch() -> None:
    """The gradient is that with the same P held fixed, as a clean pass over the batch would give it."""
    batch, fixed = FedACD(), FedACD(refresh="epoch")
    w = torch.ones(3, dtype=torch.float64)
    logits = OUTPUTS.log().requires_grad_()
    gradients = [
        torch.autograd.grad(method.loss({"logits": logits}, LABELS, w, NOTHING, SHARED, surveyed(method)), logits)[0]
        for method in (batch, fixed)
    ]
    assert float(gradients[0].abs().max()) > 0.01
    torch.testing.assert_close(*gradients)


def test_kl_and_score_by_hand() -> None:
    # tau = .9, so Q has .05 off the diagonal.
    # Row 0: .6 log(.6/.9) + 2 * .2 log(.2/.05) = -.2432791 + .5545177 = .3112386
    # Row 1: .4 log(.4/.05) + .5 log(.5/.9) + .1 log(.1/.05) = .8317766 - .2938933 + .0693147 = .6071980
    rows = kl_to_template(P, COUNTS > 0, tau=0.9)
    assert rows.tolist() == pytest.approx([0.3112386, 0.6071980, 0], abs=1e-6)
    # The mean over the rows present is .4592183: V = 1/(1 + exp(-2.1776136)) = 1/1.1133116 = .8982211.
    # Their sum is .9184366: V = 1/(1 + exp(-1.0888068)) = 1/1.3366178 = .7481570.
    for score, expected in (("mean", 0.8982211), ("sum", 0.7481570)):
        method = FedACD(tau=0.9, score=score)
        client, extra, told = method.finish(NOTHING, SHARED, surveyed(method), did(2))
        assert told["V"].item() == pytest.approx(expected, abs=1e-6)
        assert extra == client.memo == {}


def test_score_of_a_perfect_client_is_one() -> None:
    method = FedACD()
    client = method.begin(SHARED, Client(torch.tensor([3, 3]), {}, {}))
    client = method.absorb(client, {"sums": 3 * torch.eye(2), "seen": torch.tensor([3.0, 3.0])}, "end")
    assert method.finish(NOTHING, SHARED, client, did(2))[2]["V"].item() == 1


def test_aggregate_by_hand() -> None:
    # w = 1, w_1 = 2 with V = .6, w_2 = 5 with V = .9: (.6 * 2 + .9 * 5)/1.5 = 3.8. Equal weights: 3.5.
    server = Server(Shared({"w": torch.tensor([1.0])}, {}), {})
    told = {"V": torch.tensor([0.6, 0.9])}
    for weighting, expected in (("score", 3.8), ("uniform", 3.5)):
        method = FedACD(weighting=weighting)
        u = method.weight(told)
        moved = {"w": (u[0] * (2 - 1) + u[1] * (5 - 1)).reshape(1)}
        combined = method.combine(None, server, Total(moved, {}, told), 2, None)  # type: ignore[arg-type]
        assert combined.shared.params["w"].item() == pytest.approx(expected, abs=1e-6)


def test_running_sums_by_hand() -> None:
    # Two steps an epoch: the first step's sums count 1 - 1/2 at the second. A sample mixed at lam = .75 of classes 0
    # and 1 counts .75 in row 0 and .25 in row 1. Padding (w = 0) counts nowhere.
    method = FedACD(refresh="step")
    client = method.begin(SHARED, Client(COUNTS, {}, {}))
    out = {"logits": OUTPUTS.log()}
    target = torch.tensor([[0.75, 0.25, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    client = method.observe(out, target, torch.tensor([1.0, 1, 1], dtype=torch.float64), client, did(2))
    client = method.observe(out, target, torch.tensor([1.0, 0, 0], dtype=torch.float64), client, did(2))
    p = OUTPUTS
    expected = torch.stack(
        [
            0.5 * (0.75 * p[0] + p[1]) + 0.75 * p[0],
            0.5 * (0.25 * p[0] + p[2]) + 0.25 * p[0],
            torch.zeros(3, dtype=torch.float64),
        ]
    )
    torch.testing.assert_close(client.memo["sums"], expected)
    assert client.memo["seen"].tolist() == pytest.approx([0.5 * 1.75 + 0.75, 0.5 * 1.25 + 0.25, 0])


def test_sums_of_a_client_with_one_step_an_epoch_are_still_kept() -> None:
    method = FedACD(refresh="step")
    client = method.begin(SHARED, Client(COUNTS, {}, {}))
    target, w = torch.eye(3, dtype=torch.float64)[LABELS], torch.ones(3, dtype=torch.float64)
    for _ in range(2):
        client = method.observe({"logits": OUTPUTS.log()}, target, w, client, did(1))
    assert client.memo["seen"].tolist() == pytest.approx([3, 1.5, 0])  # half of (2, 1, 0), and (2, 1, 0)


@pytest.mark.parametrize("refresh", ["epoch", "batch"])
def test_training_batches_are_kept_in_running_sums_only(refresh: str) -> None:
    method = FedACD(refresh=refresh)
    client = surveyed(method)
    again = method.observe({"logits": OUTPUTS.log()}, torch.eye(3)[LABELS], torch.ones(3), client, did(2))
    assert again is client


def test_when_a_clean_pass_is_wanted() -> None:
    assert FedACD(refresh="epoch").survey_at == {"epoch", "end"}
    assert FedACD(refresh="step", matrix="running").survey_at == frozenset()
    assert FedACD().survey_at == {"end"}


def test_running_sums_need_to_be_kept() -> None:
    for refresh in ("epoch", "batch"):
        with pytest.raises(ConfigError, match=r"method\.matrix = 'running': needs method\.refresh = 'step'"):
            FedACD(matrix="running", refresh=refresh)


@pytest.mark.parametrize(("V", "reason"), [(0.5, "score V"), (1.01, "score V"), (math.nan, "finite"), (0.7, None)])
def test_check_of_the_score(V: float, reason: str | None) -> None:
    params = {"w": torch.zeros(2)}
    got = FedACD().check(Reply(params, {}, {"V": torch.tensor(V)}), Shared(params, {}))
    assert (got is None) if reason is None else (got is not None and reason in got)
    assert "missing" in str(FedACD().check(Reply(params, {}, {}), Shared(params, {})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lam", -1),
        ("tau", 1.0),
        ("missing", 0),
        ("refresh", "never"),
        ("flatten", "no"),
        ("score", "max"),
        ("lam", "x"),
    ],
)
def test_bad_hyper_parameters_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"method\.{field} = "):
        FedACD.build({field: value})
