"""The server's side: what it takes, what it refuses, and what it does with too few replies."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fedacd
from fedacd.checkpoint import State
from fedacd.errors import ConfigError
from fedacd.flower.central import Central
from fedacd.methods import METHODS, Reply
from tests.flower.federation import TINY
from tests.flower.local import deployment, do_round, trained


@pytest.mark.parametrize("method", METHODS)
def test_the_sites_together_give_the_bits_of_the_simulation(tmp_path: Path, method: str) -> None:
    torch.set_num_threads(1)
    settings = {"train.rounds": 2, "train.participation": 0.5}
    central = Central(deployment(tmp_path / "a", **{"method.name": method, **settings}))
    while not central.done:
        do_round(central, tmp_path / "state")
    result = fedacd.run(
        {**TINY, "data.name": "digits", "method.name": method, **settings}, device="cpu", workers=1, out=tmp_path / "b"
    )
    for ours, theirs in zip(central.state.server.shared, result.model.shared, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


Change = Callable[[Reply], Reply]


def put(part: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def changed(reply: Reply) -> Reply:
        tensors = dict(getattr(reply, part))
        tensors[name] = change(tensors[name])
        return reply._replace(**{part: tensors})

    return changed


def without(part: str, name: str) -> Change:
    return lambda reply: reply._replace(**{part: {k: v for k, v in getattr(reply, part).items() if k != name}})


BAD: dict[str, tuple[str, Change, str]] = {
    "nan": ("fedacd", put("params", "head.weight", lambda w: w * torch.nan), "head.weight is not finite"),
    "inf": ("fedacd", put("params", "head.weight", lambda w: w + torch.inf), "head.weight is not finite"),
    "nan in extra": ("scaffold", put("extra", "head.weight", lambda w: w * torch.nan), "is not finite"),
    "a name missing": ("fedacd", without("params", "head.weight"), "head.weight is missing"),
    "another shape": ("fedacd", put("params", "head.weight", lambda w: w[:1]), "head.weight is missing or of another"),
    "another dtype": (
        "fedacd",
        put("params", "head.weight", lambda w: w.double()),
        "head.weight is missing or of anot",
    ),
    "another shape in extra": ("creff", put("extra", "held", lambda h: h[:1]), "extra held is missing or of another"),
    "V too small": ("fedacd", put("told", "V", lambda v: v * 0 + 0.5), "the score V is 0.5, not in (0.5, 1]"),
    "V too large": ("fedacd", put("told", "V", lambda v: v * 0 + 1.5), "the score V is 1.5, not in (0.5, 1]"),
    "no samples": ("fedavg", put("told", "n", lambda n: n * 0), "the number of samples is 0, not a whole number"),
    "half a sample": ("fedavg", put("told", "n", lambda n: n * 0 + 1.5), "the number of samples is 1.5"),
    "too many samples": ("fedavg", put("told", "n", lambda n: n * 0 + 2e6), "not a whole number from 1 to 1000000"),
    "no steps": ("fednova", put("told", "a", lambda a: a * 0), "the number of steps a is 0, not 1 or more"),
    "work below nothing": ("scaffold", put("told", "work", lambda w: -w), ", not above 0"),
    "samples beyond numbers": ("fedavg", put("told", "n", lambda n: n * torch.inf), "the number of samples is inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_refused_and_the_round_goes_on(tmp_path: Path, case: str) -> None:
    method, change, reason = BAD[case]
    central = Central(deployment(tmp_path / "run", method__name=method, flower__max_samples=1_000_000))
    good = trained(central, 0, tmp_path / "state")
    assert central.take(0, good) is None
    told = central.take(1, change(trained(central, 1, tmp_path / "state")))
    assert told is not None and reason in told
    for client in (2, 3):
        central.take(client, trained(central, client, tmp_path / "state"))
    line = central.close()
    assert line["participants"] == [0, 2, 3]
    assert line["refused"] == [{"client": 1, "reason": told}]
    assert central.accepted(1) == 0 and central.accepted(2) == 1


def test_with_all_replies_bad_the_model_stays_as_it_was(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run"))
    before = {name: w.clone() for name, w in central.state.server.shared.params.items()}
    for client in range(4):
        central.take(client, BAD["nan"][1](trained(central, client, tmp_path / "state")))
    assert not central.enough and not central.missing and central.hopeless
    line = central.close()
    assert central.untrained
    assert line["participants"] == line["weights"] == [] and len(line["refused"]) == 4
    assert central.state.round == 1
    assert all(torch.equal(w, before[name]) for name, w in central.state.server.shared.params.items())


def test_a_run_is_hopeless_when_every_client_was_refused_since_a_reply_was_used(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run"))
    hopeless = []
    for refused, used in (([0, 1], []), ([1, 2], []), ([0, 3], []), ([1], [0]), ([0, 1], []), ([2, 3], [])):
        central.begin()
        central.chosen = [*refused, *used]
        for client in refused:
            central.refuse(client, "no")
        for client in used:
            assert central.untrained
            assert central.take(client, trained(central, client, tmp_path / "state")) is None
        hopeless.append(central.hopeless)
        central.close()
    assert hopeless == [False, False, True, False, False, True]
    assert not central.untrained


def test_below_the_minimum_replies_are_kept_and_the_rest_is_asked_again(tmp_path: Path) -> None:
    central = Central(deployment(tmp_path / "run", flower__min_replies=3))
    for client in (0, 1):
        central.take(client, trained(central, client, tmp_path / "state"))
    assert not central.enough and central.missing == [2, 3]
    central.take(3, trained(central, 3, tmp_path / "state"))
    assert central.enough
    line = central.close()
    assert line["participants"] == [0, 1, 3] and line["absent"] == [2]


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedrod"])
def test_a_restarted_server_and_late_replies_leave_no_trace(tmp_path: Path, method: str) -> None:
    """Site 1 trains round 2 in vain, the server dies, round 2 is done again from the checkpoint."""
    ready = deployment(tmp_path / "run", method__name=method)
    smooth, broken = Central(ready), Central(ready)
    for _ in range(3):
        do_round(smooth, tmp_path / "smooth")
    line = do_round(broken, tmp_path / "broken")
    trained(broken, 1, tmp_path / "broken")
    saved = State(broken.state.round, broken.state.server, [])
    broken = Central(ready)
    broken.restore(saved, [line])
    assert broken.round == 2 and broken.accepted(1) == 1
    do_round(broken, tmp_path / "broken")
    do_round(broken, tmp_path / "broken")
    for name, w in smooth.state.server.shared.params.items():
        assert torch.equal(w, broken.state.server.shared.params[name])


def test_more_replies_than_participants_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"flower.min_replies = 3: only 2 sites train in a round"):
        deployment(tmp_path, flower__min_replies=3, train__participation=0.5)
