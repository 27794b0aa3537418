"""Sites and servers that die, sleep or lie: real processes, TLS and node authentication on.

`make test-flower` does seven rounds of the first test and kills a ServerApp; `make flower-faults` (FEDACD_ROUNDS=20)
does twenty and kills a SuperLink.
"""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fedacd
from fedacd.records import read_rounds
from tests.flower.federation import TINY, Federation
from tests.flower.test_equality import difference

ROUNDS = int(os.environ.get("FEDACD_ROUNDS", "7"))

ROGUE = '''
"""The ClientApp of fedacd, but for client 3, which sends NaN in round 2."""
import torch
from fedacd.flower import client, site, wire

class Rogue(site.Site):
    def train(self, shared):
        reply = super().train(shared)
        if (self.order.client, self.order.round) == (3, 2):
            return reply._replace(params={name: w * torch.nan for name, w in reply.params.items()})
        return reply

client.Site = Rogue
app = client.app
'''


@pytest.mark.timeout(1200)
def test_sites_that_die_sleep_or_lie_do_not_stop_the_run(federation: Federation) -> None:
    """Every third round a site is killed or put to sleep while the round runs, and started or woken after it.

    Flower takes a killed site for alive for a minute, and lets it in again after that.
    """
    rng = random.Random(2)
    (federation.project / "rogue.py").write_text(ROGUE)
    pyproject = federation.project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("fedacd.flower.client:app", "rogue:app"))
    settings = {"train.rounds": ROUNDS, "flower.min_replies": 2, "flower.round_seconds": 30, "flower.join_seconds": 10}
    out = federation.submit("faults", settings)
    hurt: dict[int, int] = {}
    for number in range(3, ROUNDS + 1, 3):
        federation.wait_for_round(out, number - 1, 300)
        site, kill = rng.randrange(4), rng.random() < 0.5
        hurt[number] = site
        if kill:
            federation.kill(f"site-{site}")
        else:
            federation.signal(f"site-{site}", signal.SIGSTOP)
        federation.wait_for_round(out, number, 300)
        if kill:
            federation.start_site(site)
        else:
            federation.signal(f"site-{site}", signal.SIGCONT)
    federation.wait(out, 300)
    pyproject.write_text(pyproject.read_text().replace("rogue:app", "fedacd.flower.client:app"))
    lines = read_rounds(out)
    for line in lines:
        print(line["round"], line["participants"], line["absent"], line["refused"], f"{line['seconds']:.1f} s")
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    for line in lines:
        refused = [entry["client"] for entry in line["refused"]]
        assert sorted([*line["participants"], *line["absent"], *refused]) == [0, 1, 2, 3]
        assert len(line["participants"]) >= 2
    assert lines[1]["refused"] == [{"client": 3, "reason": lines[1]["refused"][0]["reason"]}]
    assert "is not finite" in lines[1]["refused"][0]["reason"]
    for number, site in hurt.items():
        assert site in lines[number - 1]["absent"]
        later = lines[number : number + 6]
        assert any(site in line["participants"] for line in later) or len(later) < 4


LONG = pytest.mark.skipif("FEDACD_ROUNDS" not in os.environ, reason="make flower-faults")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["serverapp", pytest.param("superlink", marks=LONG)])
def test_a_killed_server_goes_on_from_its_checkpoint_to_the_same_weights(
    federation: Federation, tmp_path: Path, what: str
) -> None:
    """Killed in round 2, and given one round more at its end. A SuperLink takes its ServerApp with it; when it is back,
    so are its sites, by themselves."""
    rounds = 2 if what == "serverapp" else 3
    settings: dict[str, Any] = {"method.name": "scaffold", "run.seed": 4, "train.rounds": rounds}
    out = federation.submit(f"killed-{what}", settings)
    federation.wait_for_round(out, 1)
    time.sleep(2)
    if what == "serverapp":
        server = federation.server_app()
        assert server is not None
        os.kill(server, signal.SIGKILL)
    else:
        federation.kill("superlink")
        federation.start_server()
    assert len(read_rounds(out)) == 1
    federation.run(f"killed-{what}", settings, 300)
    assert len(read_rounds(out)) == rounds
    settings["train.rounds"] = rounds + 1
    federation.submit(f"killed-{what}", settings)
    federation.wait_for_round(out, rounds + 1, 300)
    federation.wait(out)
    lines = read_rounds(out)
    assert [line["round"] for line in lines] == list(range(1, rounds + 2))
    assert all(line["participants"] == [0, 1, 2, 3] for line in lines)
    torch.set_num_threads(1)
    values = {**TINY, **settings, "data.name": str(federation.data)}
    simulated = fedacd.run(values, device="cpu", workers=1, out=tmp_path / "simulated")
    assert difference(out, simulated.folder) < 1e-5


@pytest.mark.timeout(120)
def test_a_key_that_is_not_registered_is_refused(federation: Federation) -> None:
    before = federation.flwr("supernode", "list", "federation", "--format", "json")
    federation.kill("site-3")
    federation.start_site(3, key=4, again=False)
    log, limit = federation.folder / "site-3.log", time.monotonic() + 60
    offset = log.stat().st_size
    try:
        while federation.groups["site-3"].poll() is None and time.monotonic() < limit:
            time.sleep(0.5)
        said = log.read_text()[offset:]
        print(said[-2000:])
        assert federation.groups["site-3"].poll() not in (None, 0), "it runs on"
        assert before.count('"node-id"') == 4
        assert federation.flwr("supernode", "list", "federation", "--format", "json").count('"node-id"') == 4
    finally:
        federation.kill("site-3")
        federation.start_site(3)


def test_no_key_is_in_a_log_or_a_record(federation: Federation) -> None:
    """After all of the above."""
    keys = federation.project / "keys"
    private = [path for path in keys.iterdir() if path.suffix not in (".pub", ".crt", ".pem", ".srl")]
    lines = [line for path in private for line in path.read_bytes().splitlines()]
    secret = [line for line in lines if len(line) > 16 and b"PRIVATE" not in line]  # a last line may be any few letters
    files = [path for path in federation.folder.rglob("*") if path.is_file() and keys not in path.parents]
    assert len(private) == 7 and len(secret) > 20 and len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert not any(line in content for line in secret), path
