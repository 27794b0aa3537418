"""Student's t for paired differences, without scipy: tail probability, quantile, Holm's correction.

The tail is the regularised incomplete beta function, P(|T| > t) = I_x(df/2, 1/2) with x = df/(df + t^2), from its
continued fraction (Abramowitz and Stegun 26.5.8), evaluated by Lentz's method.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

SURE = 0.05
"""The level of every test and interval in the report."""

_TINY, _CLOSE = 1e-300, 1e-14


class Paired(NamedTuple):
    """Differences over seeds: their mean, its 95 % interval and the two-sided p. None: too few seeds to tell."""

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None


def paired(differences: Sequence[float]) -> Paired:
    """The paired t test of mean 0, with n - 1 degrees of freedom."""
    n = len(differences)
    mean = math.fsum(differences) / n
    if n < 2:
        return Paired(n, mean, None, None, None)
    error = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    if error <= 1e-12 * abs(mean):  # no spread at all: the test has nothing to divide by
        return Paired(n, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    half = quantile(SURE, n - 1) * error
    return Paired(n, mean, mean - half, mean + half, two_sided(mean / error, n - 1))


def two_sided(t: float, df: float) -> float:
    """P(|T| > |t|) of Student's distribution."""
    square = t * t
    if square < 0.5:  # from the end at which it is small, so that no digits are lost
        return 1 - incomplete_beta(square / (df + square), 0.5, df / 2)
    return incomplete_beta(df / (df + square), df / 2, 0.5)


def quantile(p: float, df: float) -> float:
    """The t > 0 with P(|T| > t) = p, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, df) > p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > p else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the distribution function of Beta(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, 10_000):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p values that stay honest when many pairs are tested at once; None stays None and does not count."""
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[i] = largest
    return adjusted
