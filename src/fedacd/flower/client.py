"""The ClientApp: `clientapp = "fedacd.flower.client:app"`."""

import json
import logging

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedacd.config import Config
from fedacd.errors import DataError, FedacdError, RecordError
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
    """Train a round. Why that cannot be done stands in this site's log; the server is told what it may know."""
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
    except Exception as error:  # Flower would send the text of any, in which the name of a file may stand
        content = _refusal(error)
    return Message(content, reply_to=message)


def _refusal(error: Exception) -> RecordDict:
    LOG.error("fedacd: %s", error, exc_info=None if isinstance(error, FedacdError) else error)
    return RecordDict({wire.REFUSAL: ConfigRecord({"why": _told(error)})})


def _told(error: Exception) -> str:
    """What the server is told. Texts about data and files may hold names that are not the server's to know."""
    match error:
        case DataError():
            what = "its data cannot be used"
        case RecordError():
            what = "what it keeps between rounds cannot be used"
        case FedacdError():
            return str(error)
        case _:
            what = f"it failed with {type(error).__name__}"
    return f"{what}; the site's log says why"


app = ClientApp()
app.query()(hello)
app.train()(train)
