"""The ClientApp: `clientapp = "fedacd.flower.client:app"`."""

import json
import logging

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedacd.config import Config
from fedacd.errors import FedacdError
from fedacd.flower import wire
from fedacd.flower.site import Order, Site, node_of

LOG = logging.getLogger("flwr")


def hello(message: Message, context: Context) -> Message:
    """Say which client this site is."""
    try:
        content = RecordDict({wire.HELLO: ConfigRecord({"client": node_of(context.node_config).partition_id})})
    except FedacdError as error:
        content = _refusal(error)
    return Message(content, reply_to=message)


def train(message: Message, context: Context) -> Message:
    """Train a round. What cannot be done is said to the server in one line, and in this site's log."""
    try:
        asked = message.content[wire.ORDER]
        order = Order(
            config=Config.build(json.loads(asked["config"])),
            client=asked["client"],
            round=asked["round"],
            accepted=asked["accepted"],
            shape=tuple(asked["shape"]),
            num_classes=asked["classes"],
            class_names=tuple(asked.get("class_names", ())),
        )
        site = Site(node_of(context.node_config), order)
        content = wire.send_reply(site.train(wire.read_shared(message.content, site.first.shared)))
        context.state["fedacd"] = ConfigRecord({"file": str(site.state_file)})
    except FedacdError as error:
        content = _refusal(error)
    return Message(content, reply_to=message)


def _refusal(error: FedacdError) -> RecordDict:
    LOG.error("fedacd: %s", error)
    return RecordDict({wire.REFUSAL: ConfigRecord({"why": str(error)})})


app = ClientApp()
app.query()(hello)
app.train()(train)
