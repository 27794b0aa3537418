"""Draws: what they depend on, and what they do not."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedacd.config import Data, Train
from fedacd.engine.plan import LocalPlan, even_partners, local_plan, participants

DATA = Data(crop=4, flip=True)


def plan(
    n: int = 150, seed: int = 0, round_: int = 1, client: int = 2, data: Data = DATA, **train: object
) -> LocalPlan:
    labels = np.arange(n) ** 2 % 7  # 0, 1, 2 and 4
    return local_plan(seed, round_, client, labels, Train.build({"mixup": True, **train}), data)


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 70))
def test_every_epoch_sees_every_sample_once(n: int, epochs: int, batch_size: int) -> None:
    drawn = plan(n, epochs=epochs, batch_size=batch_size)
    assert drawn.steps == epochs * drawn.epoch_steps == epochs * -(-n // batch_size)
    real = [row[:size] for row, size in zip(drawn.order, drawn.size, strict=True)]
    for epoch in range(epochs):
        batches = real[epoch * drawn.epoch_steps : (epoch + 1) * drawn.epoch_steps]
        assert sorted(np.concatenate(batches).tolist()) == list(range(n))


@given(st.integers(1, 130))
def test_partners_are_permuted_among_real_samples_only(n: int) -> None:
    drawn = plan(n)
    for partner, size in zip(drawn.partner, drawn.size, strict=True):
        assert sorted(partner[:size].tolist()) == list(range(size))
        assert partner[size:].tolist() == list(range(size, len(partner)))


def test_even_partners_by_hand() -> None:
    """Three samples of class 0 share half of the line, the one of class 1 has the other half; then a short batch."""
    y, size = np.array([[0, 0, 0, 1], [5, 5, 3, 0]]), np.array([4, 3])
    partner = np.array([[0, 1, 2, 3], [2, 0, 1, 3]])
    # Ends at 1/6, 2/6, 1/2, 1 and places at 1/8, 3/8, 5/8, 7/8; ends at 1/4, 1/2, 1 and places at 5/6, 1/6, 1/2.
    assert even_partners(y, size, partner).tolist() == [[0, 2, 3, 3], [2, 0, 2, 3]]


def test_even_partners_are_of_every_class_alike() -> None:
    found = plan(n=6000, epochs=2, batch_size=64, mixup_partners="even")
    usual = plan(n=6000, epochs=2, batch_size=64)
    labels = (np.arange(6000) ** 2 % 7)[found.order]
    shares = {}
    for name, partner in (("even", found.partner), ("random", usual.partner)):
        of_partner = np.take_along_axis(labels, partner, axis=1)
        real = np.arange(64) < found.size[:, None]
        shares[name] = np.bincount(of_partner[real], minlength=7)[[0, 1, 2, 4]] / real.sum()
    assert shares["random"] == pytest.approx([1 / 7, 2 / 7, 2 / 7, 2 / 7], abs=1e-3)
    assert shares["even"] == pytest.approx([1 / 4] * 4, abs=0.01)
    for name in ("order", "size", "shift", "flip", "lam"):
        assert np.array_equal(getattr(found, name), getattr(usual, name))


def test_switching_mixup_or_augmentation_changes_nothing_else() -> None:
    mixed, plain, still = plan(), plan(mixup=False), plan(data=Data(crop=0, flip=False))
    for one in (plain, still):
        np.testing.assert_array_equal(mixed.order, one.order)
    np.testing.assert_array_equal(mixed.shift, plain.shift)
    np.testing.assert_array_equal(mixed.lam, still.lam)
    assert (plain.lam == 1).all()
    assert not still.flip.any()
    assert not still.shift.any()


def test_draws_depend_on_seed_round_and_client() -> None:
    first = plan()
    for field in dataclasses.fields(LocalPlan):
        assert np.array_equal(getattr(first, field.name), getattr(plan(), field.name))
    for other in (plan(seed=1), plan(round_=2), plan(client=3)):
        assert not np.array_equal(first.order, other.order)
        assert not np.array_equal(first.shift, other.shift)
        assert not np.array_equal(first.lam, other.lam)


def test_draws_have_the_right_range() -> None:
    drawn = plan(3000)
    assert drawn.shift.min() == 0
    assert drawn.shift.max() == 8  # padding 4 on both sides
    assert drawn.flip.mean() == pytest.approx(0.5, abs=0.02)
    assert ((drawn.lam > 0) & (drawn.lam < 1)).all()


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 4.0])
def test_mixing_weights_are_as_strong_as_set(alpha: float) -> None:
    """Beta(alpha, alpha) has the mean 1/2, whatever alpha, and the variance 1/(4 (2 alpha + 1))."""
    lam = plan(3000, epochs=60, mixup_alpha=alpha).lam
    assert lam.mean() == pytest.approx(0.5, abs=0.03)
    assert lam.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)


@pytest.mark.parametrize(
    ("clients", "ratio", "count"),
    [(20, 0.4, 8), (20, 0.6, 12), (10, 0.3, 3), (5, 0.1, 1), (7, 1.0, 7), (100, 0.29, 29)],  # .29 * 100 is 28.999...
)
def test_number_of_participants(clients: int, ratio: float, count: int) -> None:
    chosen = participants(0, 1, clients, ratio)
    assert len(set(chosen.tolist())) == len(chosen) == count
    assert chosen.tolist() == sorted(chosen.tolist())


def test_participants_change_from_round_to_round_and_reach_everybody() -> None:
    rounds = [tuple(participants(0, r, 20, 0.4).tolist()) for r in range(1, 40)]
    assert len(set(rounds)) > 30
    assert set().union(*rounds) == set(range(20))
    assert rounds[0] == tuple(participants(0, 1, 20, 0.4).tolist())
