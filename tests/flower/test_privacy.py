"""Central differential privacy: clipping binds, noise has its scale, epsilon is that of the literature."""

import math
import re
from pathlib import Path

import pytest
import torch

from fedacd.errors import ConfigError, RecordError
from fedacd.flower.central import Central
from fedacd.flower.privacy import Privacy, require_same_terms
from fedacd.methods import Reply, Shared
from tests.flower.local import deployment, trained

SHARED = Shared({"a": torch.ones(30), "b": torch.zeros(10, 4)}, {})


def reply(size: float) -> Reply:
    moved = {
        name: torch.randn(w.shape, generator=torch.Generator().manual_seed(1)) for name, w in SHARED.params.items()
    }
    return Reply({name: w + size * moved[name] for name, w in SHARED.params.items()}, {}, {})


def norm(one: Reply) -> float:
    moved = [(one.params[name].double() - w.double()).square().sum() for name, w in SHARED.params.items()]
    return math.sqrt(float(torch.stack(moved).sum()))


def privacy(noise: float = 1.0, clip: float = 0.5) -> Privacy:
    return Privacy(clip=clip, noise=noise, delta=1e-5, num_clients=4, seed=0)


def test_clipping_binds_on_the_whole_update_and_only_where_it_must() -> None:
    assert norm(privacy().clip(reply(10.0), SHARED)) == pytest.approx(0.5, rel=1e-6)
    small = reply(0.01)
    assert norm(small) < 0.5
    assert norm(privacy().clip(small, SHARED)) == pytest.approx(norm(small), rel=1e-6)


def test_the_noise_on_the_sum_has_the_scale_that_was_asked_for() -> None:
    zeros = {"w": torch.zeros(400, 500, dtype=torch.float64)}
    noise = privacy(noise=1.3, clip=0.5).noisy(zeros)["w"]
    assert float(noise.std()) == pytest.approx(0.65, rel=0.01)
    assert abs(float(noise.mean())) < 0.01


def test_noise_differs_from_run_to_run() -> None:
    zeros = {"w": torch.zeros(5, dtype=torch.float64)}
    one, other = (Privacy(clip=1, noise=1, delta=1e-5, num_clients=4).noisy(zeros)["w"] for _ in range(2))
    assert not torch.equal(one, other)


def exact_delta(epsilon: float, noise: float) -> float:
    """Of the Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8)."""

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2))

    a = 1 / (2 * noise)
    return phi(a - epsilon * noise) - math.exp(epsilon) * phi(-a - epsilon * noise)


@pytest.mark.parametrize("rounds", [1, 10, 200])
def test_epsilon_covers_the_exact_one_closely(rounds: int) -> None:
    """Sums of T rounds are one Gaussian mechanism with noise z / sqrt(T), whose delta has a closed form."""
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: make test-flower")
    account = privacy(noise=4.0)
    for _ in range(rounds):
        account.count(4)
    epsilon, noise = account.epsilon(), 4.0 / math.sqrt(rounds)
    assert exact_delta(epsilon, noise) <= 1e-5
    assert exact_delta(0.8 * epsilon, noise) > 1e-5


def test_a_private_round_is_clipped_noisy_and_says_what_it_cost(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: make test-flower")
    settings = {"method__weighting": "uniform", "flower__dp_noise": 0.01, "flower__dp_clip": 0.1}
    central = Central(deployment(tmp_path / "run", **settings))
    before = central.state.server.shared.params
    for client in central.chosen:
        central.take(client, trained(central, client, tmp_path / "state"))
    line = central.close()
    moved = [(w - before[name]).double().square().sum() for name, w in central.state.server.shared.params.items()]
    num_weights = sum(w.numel() for w in before.values())
    std = 0.01 * 0.1 / 4 * math.sqrt(num_weights)
    assert math.sqrt(float(sum(moved))) < 0.1 + 1.1 * std
    assert line["privacy"]["epsilon"] > 0 and line["privacy"]["clip"] == 0.1
    again = Central(deployment(tmp_path / "run", **settings))
    again.restore(central.state, [line])
    assert again.privacy is not None and again.privacy.epsilon() == line["privacy"]["epsilon"]


@pytest.mark.parametrize("method", ["scaffold", "creff", "fednh", "fednova", "fedacd"])
def test_replies_that_the_noise_does_not_cover_are_refused(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match="which the noise does not cover"):
        Central(deployment(tmp_path / "run", method__name=method, flower__dp_noise=1.0))


CHANGES = [
    ({}, {"dp_noise": 0.0}, "flower.dp_noise = 0: round 2 of this run was done with 1,"),
    ({}, {"dp_noise": 2.0}, "flower.dp_noise = 2: round 2 of this run was done with 1,"),
    ({}, {"dp_clip": 0.5}, "flower.dp_clip = 0.5: round 2 of this run was done with 0.1,"),
    ({}, {"dp_delta": 1e-6}, "flower.dp_delta = 1e-06: round 2 of this run was done with 1e-05,"),
    ({"dp_noise": 0.0}, {}, "flower.dp_noise = 1: round 2 of this run was done with 0,"),
    ({}, {"dp_noise": 3.0, "dp_clip": 0.5}, "flower.dp_noise = 3: "),
]


@pytest.mark.parametrize(("then", "now", "words"), CHANGES)
def test_terms_that_change_are_refused_from_the_first_reply_on(
    then: dict[str, float], now: dict[str, float], words: str
) -> None:
    usual = {"dp_noise": 1.0, "dp_clip": 0.1, "dp_delta": 1e-5}
    before, after = (_terms({**usual, **change}) for change in (then, now))
    spent = {"privacy": {"epsilon": 1.0, **before.terms}} if before else {}
    lines = [{"round": 1, "participants": [], **spent}, {"round": 2, "participants": [0, 1], **spent}]
    require_same_terms(before, lines)
    require_same_terms(after, lines[:1])
    with pytest.raises(RecordError, match=re.escape(words)):
        require_same_terms(after, lines)


def _terms(settings: dict[str, float]) -> Privacy | None:
    noise, clip, delta = (settings[f"dp_{key}"] for key in ("noise", "clip", "delta"))
    return Privacy(clip=clip, noise=noise, delta=delta, num_clients=4) if noise else None
