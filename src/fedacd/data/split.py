"""A test set where a source has none: a part of every class, always the same one."""

import numpy as np
from numpy.typing import NDArray

from fedacd.errors import DataError


def stratified(y: NDArray[np.generic], part: float) -> NDArray[np.bool_]:
    """Which samples are test: `part` of every class, at least one and never all; a class of one stays in train."""
    if not 0 < part < 1:
        raise DataError(f"test = {part:g}: must be above 0 and below 1.")
    # RandomState, because its stream is the one that numpy promises never to change.
    rng = np.random.RandomState(0)
    is_test = np.zeros(len(y), bool)
    order = np.argsort(y, kind="stable")
    _, starts = np.unique(y[order], return_index=True)
    for members in np.split(order, starts[1:]):
        most = len(members) - 1
        is_test[rng.permutation(members)[: min(max(round(part * len(members)), 1), most)]] = True
    if not is_test.any():
        raise DataError(f"test = {part:g}: no class has the two images that one for the test set needs.")
    return is_test
