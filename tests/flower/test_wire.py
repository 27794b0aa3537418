"""What arrives is looked at before it is read."""

import io
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedacd.errors import UpdateError
from fedacd.methods import Reply

flwr = pytest.importorskip("flwr.app", reason="flwr is not installed: make test-flower")

from fedacd.flower import wire  # noqa: E402

LIKE = Reply({"w": torch.zeros(30, 20), "n": torch.zeros((), dtype=torch.int64)}, {}, {"V": torch.tensor(0.7)})


def message(content: object) -> object:
    return SimpleNamespace(has_error=lambda: False, content=content)


def test_names_shapes_dtypes_and_order_are_kept() -> None:
    reply = Reply({"w": torch.randn(30, 20), "n": torch.tensor(7)}, {}, {"V": torch.tensor(0.6)})
    back = wire.read_reply(message(wire.send_reply(reply)), LIKE)
    assert list(back.params) == ["w", "n"] and back.extra == {}
    assert torch.equal(back.params["w"], reply.params["w"]) and back.params["n"].dtype == torch.int64
    assert back.told["V"].shape == () and float(back.told["V"]) == float(reply.told["V"])


def changed(part: str, name: str, array: object) -> object:
    content = wire.send_reply(LIKE)
    content[part][name] = array
    return message(content)


def npy(array: NDArray[Any], pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


class Trap:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was read",))


PICKLED = npy(np.array([Trap()], dtype=object), pickled=True)

CASES = {
    "surplus": (("params", "z", np.zeros(1)), "params holds 'z', which is not known"),
    "shape": (
        ("params", "w", np.zeros((20, 30), np.float32)),
        r"params w is 'float32' \[20, 30\], expected float32 \[30, 20\]",
    ),
    "dtype": (("params", "w", np.zeros((30, 20))), "params w is 'float64'"),
    "told": (("told", "V", np.zeros(2, np.float32)), "told V is 'float32'"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_expected_is_named(case: str) -> None:
    (part, name, array), reason = CASES[case]
    with pytest.raises(UpdateError, match=reason):
        wire.read_reply(changed(part, name, flwr.Array(array)), LIKE)


DATA = {
    "oversized": (npy(np.zeros((30, 20), np.float32)) + b"\0" * 1000, "params w is oversized: 3528 bytes"),
    "pickled": (PICKLED, "params w cannot be read"),
    "raw pickle": (pickle.dumps([1]), "params w cannot be read"),
    "cut short": (npy(np.zeros((30, 20), np.float32))[:-4], "params w cannot be read"),
    "another inside": (npy(np.zeros((2, 2), np.float32)), r"params w is float32 \[2, 2\]"),
}


@pytest.mark.parametrize("case", DATA)
def test_bytes_that_are_not_what_they_claim_are_refused(case: str) -> None:
    data, reason = DATA[case]
    array = flwr.Array("float32", (30, 20), "numpy.ndarray", data)
    with pytest.raises(UpdateError, match=reason):
        wire.read_reply(changed("params", "w", array), LIKE)


def test_parts_that_are_missing_or_too_many_are_refused() -> None:
    content = wire.send_reply(LIKE)
    del content["told"]
    with pytest.raises(UpdateError, match="told is missing"):
        wire.read_reply(message(content), LIKE)
    content = wire.send_reply(LIKE)
    content["labels"] = flwr.ArrayRecord()
    with pytest.raises(UpdateError, match="the reply holds 'labels'"):
        wire.read_reply(message(content), LIKE)
    content = wire.send_reply(LIKE)
    del content["params"]["w"]
    with pytest.raises(UpdateError, match="params lacks w"):
        wire.read_reply(message(content), LIKE)


def test_a_text_from_outside_is_short_and_on_one_line() -> None:
    content = flwr.RecordDict({wire.REFUSAL: flwr.ConfigRecord({"why": "no\ndata " * 1000})})
    with pytest.raises(UpdateError) as caught:
        wire.read_reply(message(content), LIKE)
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


def test_flower_s_word_that_a_site_is_gone_is_no_answer_of_the_site_s() -> None:
    gone, crashed = (
        SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(code=code, reason="why")) for code in (5, 8)
    )
    assert not wire.is_answer(gone) and wire.is_answer(crashed)
    with pytest.raises(UpdateError, match="the site failed: 'why'"):
        wire.read_reply(crashed, LIKE)
