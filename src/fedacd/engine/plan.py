"""Every random draw of a run, as data: a pure function of (seed, round, client).

Draws come from numpy's Philox, a stream of its own for each purpose, so that engines, methods and deployments see the
same clients, batches, crops and mixing weights, and that switching mixup off changes nothing else.

Shapes: S steps, B batch.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedacd.config import Data, Train


class Stream(IntEnum):
    """What a generator is for; the numbers are part of the meaning of a seed. 0 is the partition's."""

    WEIGHTS = 1
    PARTICIPANTS = 2
    BATCHES = 3
    AUGMENT = 4
    MIXUP = 5
    SERVER = 6
    TORCH = 7


def generator(seed: int, stream: Stream, *where: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream, *where])))


def torch_seed(seed: int, stream: Stream, *where: int) -> int:
    """A seed for torch's own generator: initial weights, dropout."""
    return int(generator(seed, stream, *where).integers(2**62))


def num_participants(num_clients: int, ratio: float) -> int:
    """How many clients train in a round."""
    return max(1, math.floor(ratio * num_clients + 1e-9))


def participants(seed: int, round_: int, num_clients: int, ratio: float) -> NDArray[np.int64]:
    """The clients of a round, in ascending order; the draw depends on seed and round only."""
    count = num_participants(num_clients, ratio)
    chosen = generator(seed, Stream.PARTICIPANTS, round_).choice(num_clients, count, replace=False)
    return np.sort(chosen).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """One client's local training in one round. A short last batch is padded; `size` says how much is real."""

    epoch_steps: int
    order: NDArray[np.int64]
    """[S, B] positions in the client's list of samples; padding repeats position 0."""
    size: NDArray[np.int64]
    """[S] real samples of each batch, which come first."""
    shift: NDArray[np.int64]
    """[S, B, 2] where the crop starts in the padded image: row, column."""
    flip: NDArray[np.bool_]
    """[S, B]"""
    lam: NDArray[np.float64]
    """[S] mixing weight, 1 without mixup."""
    partner: NDArray[np.int64]
    """[S, B] whom a sample is mixed with, one of the real samples; padding stays with itself."""

    @property
    def steps(self) -> int:
        return len(self.size)


def local_plan(seed: int, round_: int, client: int, labels: NDArray[np.int64], train: Train, data: Data) -> LocalPlan:
    """Draw a client's round: shuffled batches, crops, flips, mixing weights and partners; `labels` of its samples."""
    n, B = len(labels), train.batch_size
    epoch_steps = math.ceil(n / B)
    S = train.epochs * epoch_steps
    at = (round_, client)

    shuffled = generator(seed, Stream.BATCHES, *at).permuted(np.tile(np.arange(n), (train.epochs, 1)), axis=1)
    order = np.zeros((train.epochs, epoch_steps * B), np.int64)
    order[:, :n] = shuffled
    size = np.full((train.epochs, epoch_steps), B)
    size[:, -1] = n - (epoch_steps - 1) * B

    augment = generator(seed, Stream.AUGMENT, *at)
    shift = augment.integers(0, 2 * (data.crop or 0) + 1, (S, B, 2))
    flips = augment.random((S, B)) < 0.5

    lam, partner = np.ones(S), np.tile(np.arange(B), (S, 1))
    if train.mixup:
        mixing = generator(seed, Stream.MIXUP, *at)
        lam = mixing.beta(train.mixup_alpha, train.mixup_alpha, S)
        for epoch in partner.reshape(train.epochs, epoch_steps, B):
            mixing.permuted(epoch[:-1], axis=1, out=epoch[:-1])
            epoch[-1, : size[0, -1]] = mixing.permutation(size[0, -1])
        if train.mixup_partners == "even":
            partner = even_partners(labels[order.reshape(S, B)], size.ravel(), partner)

    return LocalPlan(
        epoch_steps=epoch_steps,
        order=order.reshape(S, B),
        size=size.ravel(),
        shift=shift,
        flip=flips if data.flip else np.zeros_like(flips),
        lam=lam,
        partner=partner,
    )


def even_partners(y: NDArray[np.int64], size: NDArray[np.int64], partner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Permutations [S, B] made into draws in which every class of a batch is as likely, by its labels `y` [S, B].

    The samples of a batch share the line from 0 to 1 so that every class has the same length of it. The real samples'
    places in the permutation are spread evenly over that line: whose part one falls into is the partner.
    """
    S, B = y.shape
    row, real = np.arange(S)[:, None], np.arange(B) < size[:, None]
    counts = np.zeros((S, int(y.max()) + 1))
    np.add.at(counts, (np.broadcast_to(row, y.shape)[real], y[real]), 1)
    length = np.where(real, 1 / np.maximum(counts[row, y], 1), 0).cumsum(1)
    ends, at = length / length[:, -1:] + row, (partner + 0.5) / size[:, None] + row
    found = np.searchsorted(ends.ravel(), at.ravel(), side="right").reshape(S, B) - row * B
    return np.where(real, np.minimum(found, size[:, None] - 1), partner)
