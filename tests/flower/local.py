"""A deployment without Flower: the server's and the sites' code, joined by calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedacd.flower.central import Central
from fedacd.flower.settings import Deployment, deployment_of
from fedacd.flower.site import Node, Order, Site
from fedacd.methods import Reply
from tests.flower.federation import TINY


def deployment(folder: Path, **settings: Any) -> Deployment:
    """On digits; `method__lam=2` sets method.lam."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return deployment_of({**TINY, "data.name": "digits", "run.out": str(folder), **dotted})


def order_of(central: Central, client: int) -> Order:
    shape = central.net.num_classes
    return Order(central.config, client, central.round, central.accepted(client), (1, 8, 8), shape)


def site(central: Central, client: int, state: Path, **node: Any) -> Site:
    about: Mapping[str, Any] = {"num_partitions": 4, "data": "digits", "state": str(state), "threads": 1, **node}
    return Site(Node.build({"partition_id": client, **about}), order_of(central, client))


def trained(central: Central, client: int, state: Path) -> Reply:
    return site(central, client, state).train(central.state.server.shared)


def do_round(central: Central, state: Path) -> dict[str, Any]:
    for client in central.chosen:
        assert central.take(client, trained(central, client, state)) is None
    line = central.close()
    central.begin()
    return line
