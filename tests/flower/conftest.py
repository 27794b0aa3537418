"""Tests of the deployment. Those with Flower in them are left out where it is not installed: `make test-flower`."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.flower.federation import Federation

HAVE_FLOWER = importlib.util.find_spec("flwr") is not None


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and four sites with TLS and node authentication, as processes of their own on loopback."""
    if not HAVE_FLOWER:
        pytest.skip("flwr is not installed: make test-flower")
    with Federation(tmp_path_factory.mktemp("federation"), num_sites=4) as federation:
        yield federation
