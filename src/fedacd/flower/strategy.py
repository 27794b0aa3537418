"""Flower's Strategy around `Central`: who is where, and what is sent and received.

A client number belongs to the node that announced it first, for as long as Flower lists that node. With node
authentication a node keeps its identity over restarts, so that a restarted site is known again at once.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedacd.errors import UpdateError, WorkerError
from fedacd.flower import wire
from fedacd.flower.central import Central

LOG = logging.getLogger("flwr")
POLL_SECONDS = 0.5
GREET_SECONDS = 2.0
"""How often it is looked who is there."""
HELLO_SECONDS = 60.0
"""How long a node that has not said who it is, or nobody that is wanted, is left alone before it is asked again."""


class Deployed(Strategy):  # type: ignore[misc]
    """Every method of the registry, as Flower's strategy. `on_round` is called with each round's record."""

    def __init__(
        self,
        central: Central,
        shape: tuple[int, int, int],
        class_names: Sequence[str],
        on_round: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self.central, self.on_round = central, on_round
        self._about = {
            "config": json.dumps(central.config.flat()),
            "shape": list(shape),
            "classes": len(class_names),
            "class_names": list(class_names),
        }
        self._client_of: dict[int, int] = {}
        self._hellos: dict[str, int] = {}
        self._greeted_at: dict[int, float] = {}
        self._greeted = -math.inf
        self._asked: set[int] = set()

    def summary(self) -> None:
        config = self.central.config
        if self.central.done:
            LOG.info("fedacd: %s has all of its %d rounds", config.run.out, config.train.rounds)
            return
        LOG.info(
            "fedacd: %s, %d sites, rounds %d to %d, into %s",
            self.central.method.title,
            config.partition.clients,
            self.central.round,
            config.train.rounds,
            config.run.out,
        )

    def start(self, grid: Grid, *_: Any, **__: Any) -> Result:
        """Train from where the record stands. Initial weights and number of rounds are those of the config."""
        self.summary()
        central, since = self.central, time.monotonic()
        while not central.done:
            self._attempt(grid)
            if central.hopeless:
                client, reason = min(central.refused.items())
                raise WorkerError(
                    f"round {central.round}: no client can train. Client {client}: {reason}. What was finished is "
                    "saved. Mend this, and start the run again."
                )
            if central.enough or not central.missing:  # asked again, those who answered would say the same
                self.aggregate_train(central.round, ())
                since = time.monotonic()
                continue
            waited = time.monotonic() - since
            if waited > central.flower.patience_seconds:
                raise WorkerError(
                    f"round {central.round}: {len(central.replies)} usable replies after {waited:.0f} seconds, fewer "
                    f"than flower.min_replies = {central.flower.min_replies}. What was finished is saved."
                )
            here = set(self._client_of.values())
            silent, gone = ([c for c in central.missing if (c in here) == is_here] for is_here in (True, False))
            LOG.warning(
                "fedacd: round %d is repeated: clients without an answer %s, not connected %s",
                central.round,
                silent,
                gone,
            )
            central.attempts += 1
        result = Result()
        result.arrays = wire.pack(central.state.server.shared.params)
        return result

    def _attempt(self, grid: Grid) -> None:
        """Ask every participant that has not answered yet, and take in answers until all are there or time is up.

        A participant that is not connected is waited for less long; one that joins meanwhile is asked at once.
        """
        central, flower, started = self.central, self.central.flower, time.monotonic()
        self._asked = set()
        waiting: set[str] = set()
        while central.missing:
            passed = time.monotonic() - started
            if passed > flower.round_seconds or (not waiting and passed > flower.join_seconds):
                return
            self._greet(grid)
            orders = list(self.configure_train(central.round, ArrayRecord(), ConfigRecord(), grid))
            waiting |= {id_ for id_ in grid.push_messages(orders) if id_} if orders else set()
            answers = list(grid.pull_messages(list(waiting))) if waiting else []
            waiting -= {message.metadata.reply_to_message_id for message in answers}
            self._take(answers)
            if not answers:
                time.sleep(POLL_SECONDS)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """An order for every participant that is connected and was not asked yet."""
        central, shared = self.central, self.central.state.server.shared
        for node, client in list(self._client_of.items()):
            if client in central.missing and client not in self._asked:
                self._asked.add(client)
                order = {"client": client, "round": server_round, "accepted": central.accepted(client), **self._about}
                content, ttl = wire.send_shared(shared, order), central.flower.round_seconds
                yield Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in what is left, close the round and record it."""
        self._take(replies)
        line = self.central.close()
        self.on_round(line)
        self.central.begin()
        LOG.info("fedacd: round %d in %.1f s, %s", line["round"], line["seconds"], _told(line))
        return wire.pack(self.central.state.server.shared.params), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: sites do not evaluate, since what they would send tells of their labels."""
        return ()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def _take(self, replies: Iterable[Message]) -> None:
        for message in replies:
            client = self._client_of.get(message.metadata.src_node_id)
            if client not in self.central.missing or not wire.is_answer(message):
                continue
            try:
                reason = self.central.take(client, wire.read_reply(message, self.central.like))
            except UpdateError as error:
                reason = str(error)
                self.central.refuse(client, reason)
            if reason:
                LOG.warning("fedacd: round %d, client %d is refused: %s", self.central.round, client, reason)

    def _greet(self, grid: Grid) -> None:
        """Ask nodes that are new for their client number, and forget those that are gone."""
        now = time.monotonic()
        if now - self._greeted < GREET_SECONDS:
            return
        here, self._greeted = set(grid.get_node_ids()), now
        self._client_of = {node: client for node, client in self._client_of.items() if node in here}
        self._greeted_at = {node: at for node, at in self._greeted_at.items() if node in here}
        unknown = here - self._client_of.keys()
        new = sorted(node for node in unknown if now - self._greeted_at.get(node, -math.inf) > HELLO_SECONDS)
        if new:
            hellos = [Message(RecordDict(), node, MessageType.QUERY, ttl=HELLO_SECONDS) for node in new]
            ids = list(grid.push_messages(hellos))
            self._hellos |= {id_: node for id_, node in zip(ids, new, strict=True) if id_}
            self._greeted_at |= dict.fromkeys(new, now)
        self._hellos = {id_: node for id_, node in self._hellos.items() if node in self._greeted_at}
        for message in list(grid.pull_messages(list(self._hellos))) if self._hellos else ():
            self._admit(self._hellos.pop(message.metadata.reply_to_message_id), message)

    def _admit(self, node: int, message: Message) -> None:
        if node in self._client_of:
            return
        client = message.content[wire.HELLO].get("client") if _is_hello(message) else None
        num_clients = self.central.config.partition.clients
        if type(client) is not int or not 0 <= client < num_clients:
            LOG.warning("fedacd: node %d is no client from 0 to %d: %s", node, num_clients - 1, _why(message))
        elif client in self._client_of.values():
            LOG.warning("fedacd: node %d announces client %d, which another node is", node, client)
        else:
            self._client_of[node] = client
            LOG.info("fedacd: client %d is node %d", client, node)


def _is_hello(message: Message) -> bool:
    return bool(message.has_content()) and isinstance(message.content.get(wire.HELLO), ConfigRecord)


def _why(message: Message) -> str:
    if message.has_error():
        return wire.shown(message.error.reason)
    return wire.shown(dict(message.content.get(wire.REFUSAL, message.content.get(wire.HELLO, {}))))


def _told(line: dict[str, Any]) -> str:
    parts = [f"{len(line['participants'])} replies used"]
    parts += [f"{len(line[key])} {key}" for key in ("refused", "absent") if line[key]]
    if line["accuracy"] is not None:
        parts.append(f"accuracy {line['accuracy']:.4f}")
    return ", ".join(parts)
