"""The registry of methods: one line a method."""

from collections.abc import Mapping
from typing import Any

from fedacd.errors import ConfigError, unknown
from fedacd.lookup import imported
from fedacd.methods.base import Client, Did, Method, Reply, Server, Shared, Tensors, Total, Trained
from fedacd.methods.creff import CReFF
from fedacd.methods.fedacd import FedACD
from fedacd.methods.fedavg import FedAvg
from fedacd.methods.feddecorr import FedDecorr
from fedacd.methods.feddyn import FedDyn
from fedacd.methods.fedlc import FedLC
from fedacd.methods.fednh import FedNH
from fedacd.methods.fednova import FedNova
from fedacd.methods.fedntd import FedNTD
from fedacd.methods.fedprox import FedProx
from fedacd.methods.fedrod import FedROD
from fedacd.methods.scaffold import Scaffold

__all__ = [
    "METHODS",
    "CReFF",
    "Client",
    "Did",
    "FedACD",
    "FedAvg",
    "FedDecorr",
    "FedDyn",
    "FedLC",
    "FedNH",
    "FedNTD",
    "FedNova",
    "FedProx",
    "FedROD",
    "Method",
    "Reply",
    "Scaffold",
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
    "fedprox": FedProx,
    "fednova": FedNova,
    "creff": CReFF,
    "fedrod": FedROD,
    "fedntd": FedNTD,
    "feddecorr": FedDecorr,
    "fedlc": FedLC,
    "fednh": FedNH,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
}


def find(name: Any) -> type[Method]:
    """The class of a method by its name, or `package.module:Class` of one's own."""
    if isinstance(name, str) and ":" in name:
        kind: Any = imported(name, "method", ConfigError)
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise ConfigError(f"method '{name}': must be a class derived from fedacd.Method.")
        return kind
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS) + " Your own: package.module:Class.")
    return METHODS[name]
