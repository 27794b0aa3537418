"""Named tensors as Flower's records, and back.

What arrives is looked at before it is read: names, dtypes, shapes and number of bytes must be those expected. The bytes
are numpy's own format without pickled objects. A text from outside is shortened and quoted before it is shown.
"""

from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedacd.errors import UpdateError
from fedacd.methods import Reply, Shared, Tensors

ORDER, REFUSAL, HELLO = "order", "refusal", "hello"
"""Names of the records beside the tensors: what is to be done, why it is not, who is there."""

_NEVER_CAME = frozenset({3, 4, 5})
"""Flower's codes for a message, its reply or its node being gone: the site has said nothing."""
_HEADER = 256
"""The most bytes that numpy's format has before the numbers of an array of few dimensions."""


def pack(tensors: Tensors) -> ArrayRecord:
    """Named tensors as a record."""
    record = ArrayRecord()
    for name, tensor in tensors.items():
        record[name] = Array(tensor.detach().cpu().contiguous().numpy())
    return record


def unpack(part: str, record: Any, like: Tensors) -> Tensors:
    """The tensors of a record in the order of `like`, which says what they must be."""
    if not isinstance(record, ArrayRecord):
        raise UpdateError(f"{part} is missing")
    if surplus := record.keys() - like.keys():
        raise UpdateError(f"{part} holds {shown(min(surplus))}, which is not known")
    if missing := like.keys() - record.keys():
        raise UpdateError(f"{part} lacks {min(missing)}")
    return {name: _tensor(f"{part} {name}", record[name], wanted) for name, wanted in like.items()}


def _tensor(name: str, array: Array, like: torch.Tensor) -> torch.Tensor:
    dtype, shape = str(like.dtype).removeprefix("torch."), tuple(like.shape)
    if array.dtype != dtype or tuple(array.shape) != shape:
        raise UpdateError(f"{name} is {shown(array.dtype)} {list(array.shape)[:8]}, expected {dtype} {list(shape)}")
    if len(array.data) > like.numel() * like.element_size() + _HEADER:
        raise UpdateError(f"{name} is oversized: {len(array.data)} bytes")
    try:
        values = array.numpy()
    except Exception as error:  # numpy's parser has many ways to fail
        raise UpdateError(f"{name} cannot be read: {shown(error)}") from None
    if values.dtype != dtype or values.shape != shape:  # what it says outside is not what it is
        raise UpdateError(f"{name} is {values.dtype} {list(values.shape)[:8]}, expected {dtype} {list(shape)}")
    return torch.from_numpy(values.copy())


def send_shared(shared: Shared, order: dict[str, Any]) -> RecordDict:
    """What the server sends."""
    return RecordDict({**{part: pack(t) for part, t in shared._asdict().items()}, ORDER: ConfigRecord(order)})


def read_shared(content: RecordDict, like: Shared) -> Shared:
    return Shared(*(unpack(part, content.get(part), tensors) for part, tensors in like._asdict().items()))


def send_reply(reply: Reply) -> RecordDict:
    """What a site sends: exactly the method's reply."""
    return RecordDict({part: pack(tensors) for part, tensors in reply._asdict().items()})


def is_answer(message: Message) -> bool:
    """Whether it comes from a site, and not from Flower in place of one."""
    return not (message.has_error() and message.error.code in _NEVER_CAME)


def read_reply(message: Message, like: Reply) -> Reply:
    """A site's reply; an UpdateError says why there is none."""
    if message.has_error():
        raise UpdateError(f"the site failed: {shown(message.error.reason)}")
    content = message.content
    if REFUSAL in content:
        raise UpdateError(f"the site refused: {shown(content[REFUSAL].get('why'))}")
    if surplus := content.keys() - set(Reply._fields):
        raise UpdateError(f"the reply holds {shown(min(surplus))}, which is not known")
    return Reply(*(unpack(part, content.get(part), tensors) for part, tensors in like._asdict().items()))


def shown(text: object, most: int = 200) -> str:
    """A text from outside on one line, no longer than it needs to be."""
    line = " ".join(str(text).split())
    return repr(line if len(line) <= most else line[: most - 3] + "...")
