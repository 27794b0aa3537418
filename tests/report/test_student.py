"""Student's t against printed tables and, where scipy is at hand, against it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedacd.report.student import holm, incomplete_beta, paired, quantile, two_sided


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)], ids=lambda v: str(v)
)
def test_quantiles_of_the_printed_table(df: int, t: float) -> None:
    assert quantile(0.05, df) == pytest.approx(t, abs=5e-4)
    assert two_sided(t, df) == pytest.approx(0.05, abs=5e-5)


def test_one_degree_of_freedom_is_cauchy() -> None:
    for t in (0.1, 1.0, 7.0, 1000.0):
        assert two_sided(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)


def test_two_degrees_of_freedom_have_a_closed_form() -> None:
    for t in (0.1, 1.0, 7.0, 1000.0):
        assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)


def test_the_beta_distribution_at_its_ends_and_in_the_middle() -> None:
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)
    assert incomplete_beta(0.5, 4, 4) == pytest.approx(0.5)
    assert incomplete_beta(0.3, 1, 1) == pytest.approx(0.3)


@given(st.floats(-50, 50), st.integers(1, 200))
def test_as_scipy(t: float, df: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    assert two_sided(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), rel=1e-8, abs=1e-300)


def test_a_paired_test_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, sd 1, standard error 1/sqrt(3), t = 3.4641 with 2 degrees: p = 0.0742.
    test = paired([1, 2, 3])
    assert (test.n, test.mean) == (3, 2)
    assert test.p == pytest.approx(0.07418, abs=1e-5)
    assert test.low == pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4)
    assert test.high == pytest.approx(2 + 4.30265 / math.sqrt(3), abs=1e-4)


def test_one_seed_says_nothing_of_chance() -> None:
    assert paired([1.5]) == (1, 1.5, None, None, None)


def test_differences_without_spread() -> None:
    assert paired([0.0, 0.0]).p == 1
    assert paired([1.0, 1.0]).p == 0


def test_holm_by_hand() -> None:
    # 0.01 x 3, 0.02 x 2, 0.04 x 1, none below the one before it.
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
