"""The registry of methods: one line a method."""

from collections.abc import Mapping
from typing import Any

from fedacd.errors import ConfigError, unknown
from fedacd.methods.base import Client, Did, Method, Reply, Server, Shared, Tensors, Total, Trained
from fedacd.methods.fedacd import FedACD
from fedacd.methods.fedavg import FedAvg

__all__ = [
    "METHODS",
    "Client",
    "Did",
    "FedACD",
    "FedAvg",
    "Method",
    "Reply",
    "Server",
    "Shared",
    "Tensors",
    "Total",
    "Trained",
    "find",
]

METHODS: Mapping[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedacd": FedACD,
}


def find(name: Any) -> type[Method]:
    """The class of a method by its name."""
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return METHODS[name]
