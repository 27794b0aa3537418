"""A client small enough to work on by hand: three classes, of which it holds two."""

import pytest
import torch

from fedacd.methods import Client, Did, Shared, Trained


@pytest.fixture
def client() -> Client:
    """Sixteen samples of class 0, one of class 1, none of class 2."""
    return Client(torch.tensor([16, 1, 0]), {}, {})


@pytest.fixture
def did() -> Did:
    """Two steps at learning rate .5 and momentum .5: worth (2 - .5 (1 - .25)/.5)/.5 = 2.5 plain ones."""
    return Did(*(torch.tensor(value) for value in (17.0, 2.0, 2.0, 0.5, 0.5)))


@pytest.fixture
def shared() -> Shared:
    return Shared({"w": torch.tensor([1.0, 2.0])}, {})


@pytest.fixture
def now() -> Trained:
    """After training, w moved by (2, -1)."""
    return Trained({"w": torch.tensor([3.0, 1.0])}, {})
