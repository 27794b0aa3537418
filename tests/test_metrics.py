"""The metrics against the paper's theorem, small cases by hand and plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedacd import metrics

NAN = math.nan


def priors_strategy(num_classes: int, num_clients: int) -> st.SearchStrategy[np.ndarray]:
    raw = arrays(np.float64, (num_clients, num_classes), elements=st.floats(0.001, 1))
    return raw.map(lambda a: a / a.sum(1, keepdims=True))


@given(st.data(), st.integers(2, 8), st.integers(1, 6), st.floats(0, 1))
def test_equal_errors_give_their_mean_for_any_priors(
    draw: st.DataObject, num_classes: int, num_clients: int, error: float
) -> None:
    priors = torch.from_numpy(draw.draw(priors_strategy(num_classes, num_clients)))
    errors = torch.full((1, num_classes), error, dtype=torch.float64)
    assert metrics.adaptability_risk(errors, priors) == pytest.approx(float(errors.sum()) / num_classes, abs=1e-12)


@given(st.data(), st.integers(2, 6), st.integers(1, 5))
def test_the_priors_of_the_proof_give_the_risk_of_the_theorem(draw: st.DataObject, num_classes: int, more: int) -> None:
    """R = eps*/C + theta/M (eps_r - eps_s), for the other clients' priors that the proof constructs."""
    C, M = num_classes, num_classes + more  # more clients than classes, as the theorem assumes
    errors = draw.draw(arrays(np.float64, C, elements=st.floats(0, 1)))
    delta = draw.draw(priors_strategy(C, 1))[0] - 1 / C  # of client m, whose prior is given
    theta = draw.draw(st.floats(1e-6, 0.999 / C))
    r, s = int(errors.argmax()), int(errors.argmin())
    if r == s:
        return  # equal errors: the case above
    theirs = -delta.copy()
    theirs[r] += theta
    theirs[s] -= theta
    priors = np.tile(1 / C + theirs / (M - 1), (M, 1))
    priors[0] = 1 / C + delta
    assert priors.min() >= -1e-12
    assert np.allclose(priors.sum(1), 1)
    expected = errors.sum() / C + theta / M * (errors[r] - errors[s])
    got = metrics.adaptability_risk(torch.from_numpy(errors)[None], torch.from_numpy(priors))
    assert got == pytest.approx(expected, abs=1e-12)
    assert got >= errors.sum() / C - 1e-12


def test_tally_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.2, 0.5, 0.3]])
    counts = metrics.tally(p.log(), torch.tensor([0, 0, 1]))
    assert counts["right"].tolist() == [1, 1, 0]
    assert counts["seen"].tolist() == [2, 1, 0]
    torch.testing.assert_close(counts["sums"], torch.tensor([[1.0, 0.8, 0.2], [0.2, 0.5, 0.3], [0, 0, 0]]))


def test_accuracies_by_hand() -> None:
    # Classes at 50 %, 100 % and 20 %: uniform (.5 + 1 + .2)/3. A client with prior (.5, .5, 0) sees .75, one with
    # (0, 0, 1) sees .2: .475 on average.
    counts = {"right": torch.tensor([1.0, 4, 1]), "seen": torch.tensor([2.0, 4, 5]), "sums": torch.zeros(3, 3)}
    priors = torch.tensor([[0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64)
    found = metrics.global_metrics(counts, priors)
    assert found["accuracy"] == pytest.approx(1.7 / 3)
    assert found["accuracy_client"] == pytest.approx(0.475)
    assert found["per_class"] == pytest.approx([0.5, 1, 0.2])


def test_the_risk_leaves_out_clients_whose_classes_cannot_be_tested() -> None:
    errors = torch.tensor([[0.2, 0.4, NAN], [0.6, 0.8, NAN]], dtype=torch.float64)
    priors = torch.tensor([[0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64)
    assert metrics.adaptability_risk(errors, priors) == pytest.approx((0.3 + 0.7) / 2)


def test_a_class_without_test_samples_is_left_out() -> None:
    # Class 2 cannot be judged: uniform (.5 + 1)/2, and the prior (.2, .3, .5) becomes (.4, .6, -): .2 + .6.
    counts = {"right": torch.tensor([1.0, 4, 0]), "seen": torch.tensor([2.0, 4, 0]), "sums": torch.zeros(3, 3)}
    found = metrics.global_metrics(counts, torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    assert found["accuracy"] == pytest.approx(0.75)
    assert found["accuracy_client"] == pytest.approx(0.8)
    assert found["per_class"][2] is None


def test_risk_by_hand() -> None:
    # Local models with errors (.5, .1) and (.2, .6); clients with priors (1, 0) and (.5, .5).
    # Model 1: (.5 + .3)/2 = .4; model 2: (.2 + .4)/2 = .3; mean .35.
    errors = torch.tensor([[0.5, 0.1], [0.2, 0.6]], dtype=torch.float64)
    assert metrics.adaptability_risk(errors, torch.tensor([[1, 0], [0.5, 0.5]])) == pytest.approx(0.35)


@given(st.integers(2, 6), st.integers(0, 2**31))
def test_kl_against_plain_loops(num_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, y = rng.dirichlet(np.ones(num_classes), 30), rng.integers(0, num_classes, 30)
    y[y == num_classes - 1] = 0  # the last class has no samples
    expected, tau = [], 1 - 1e-5
    for i in sorted(set(y.tolist())):
        row = outputs[y == i].mean(0)
        q = [tau if j == i else (1 - tau) / (num_classes - 1) for j in range(num_classes)]
        expected.append(sum(p * math.log(p / t) for p, t in zip(row, q, strict=True)))
    counts = metrics.tally(torch.from_numpy(outputs).log(), torch.from_numpy(y))
    assert float(metrics.kl_divergence(counts)) == pytest.approx(sum(expected) / len(expected), rel=1e-9)


def test_label_priors() -> None:
    assert metrics.label_priors(torch.tensor([[1, 3], [2, 0]])).tolist() == [[0.25, 0.75], [1, 0]]


def test_local_metrics_average_over_participants() -> None:
    counts = {
        "right": torch.tensor([[1.0, 1], [2, 1]]),
        "seen": torch.tensor([[2.0, 2], [2, 2]]),
        "sums": torch.tensor([[[1.8, 0.2], [0.4, 1.6]]] * 2),
    }
    found = metrics.local_metrics(counts, counts, torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    assert found["risk"] == pytest.approx((0.5 + 0.25) / 2)
    assert found["kl_local"] == found["kl_test"] == pytest.approx(float(metrics.kl_divergence(counts)[0]))
    # Rows (0.9, 0.1) and (0.2, 0.8) against (0.99, 0.01) and (0.01, 0.99), by hand:
    pairs = [(0.9, 0.99), (0.1, 0.01), (0.2, 0.01), (0.8, 0.99)]
    assert found["kl_test_99"] == pytest.approx(sum(p * math.log(p / q) for p, q in pairs) / 2)
