"""The handwritten digits that come with scikit-learn: 1,797 grey images of 8x8, there without a download."""

import numpy as np

from fedacd.data.dataset import Arrays
from fedacd.data.split import stratified
from fedacd.errors import DataError


def read_digits() -> Arrays:
    """Split 80/20 within each class, always in the same way."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("the data set 'digits' comes with scikit-learn: pip install scikit-learn.") from None
    bunch = load_digits()
    x = np.rint(bunch.images * 255 / 16).astype(np.uint8)[..., None]
    y = bunch.target.astype(np.int64)
    is_test = stratified(y, 0.2)
    return Arrays(x[~is_test], y[~is_test], x[is_test], y[is_test], tuple("0123456789"))
