"""Seconds per round beyond local training, ours beside Flower's own FedAvg: python -m tests.flower.overhead 1 4 8.

Both train the same model on the same data by the same code, over the same SuperLink and sites, one after the other.
Local training is what the slowest site of a round spends in it. The first round, in which sites are found, is left out.
"""

import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedacd.records import read_rounds
from tests.flower.federation import Federation

ROUNDS = 6

TIMED = """
import json, time
from pathlib import Path
from fedacd.flower import site

NOTES = Path("@NOTES@")

class Timed(site.Site):
    def train(self, shared):
        started = time.perf_counter()
        reply = super().train(shared)
        note = {"round": self.order.round, "seconds": time.perf_counter() - started}
        name = f"{Path(self.config.run.out).name}-{self.order.client}-{self.order.round}"
        (NOTES / name).write_text(json.dumps(note))
        return reply
"""

OURS = """
from fedacd.flower import client
from timed import Timed
client.Site = Timed
app = client.app
"""

THEIRS = """
import json, time
from pathlib import Path
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from fedacd.config import Config
from fedacd.flower.settings import deployment_of
from fedacd.flower.site import Order, node_of
from fedacd.methods import Shared
from timed import Timed

def train(message, context):
    node, asked = node_of(context.node_config), message.content["config"]
    order = Order(Config.build(json.loads(asked["config"])), node.partition_id, asked["server-round"], 0,
                  tuple(asked["shape"]), asked["classes"])
    params = dict(message.content["arrays"].to_torch_state_dict())
    reply = Timed(node, order).train(Shared(params, {}))
    content = {"arrays": ArrayRecord(reply.params), "metrics": MetricRecord({"num-examples": int(reply.told["n"])})}
    return Message(RecordDict(content), reply_to=message)

def serve(grid, context):
    ready = deployment_of(context.run_config)
    sites, out = ready.config.partition.clients, Path(ready.config.run.out)
    out.mkdir(parents=True)
    times = []
    about = {"config": json.dumps(ready.config.flat()), "shape": list(ready.dataset.shape), "classes": 10}
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    strategy.start(grid, ArrayRecord(dict(ready.net.initial)), num_rounds=ready.config.train.rounds,
                   train_config=ConfigRecord(about),
                   evaluate_fn=lambda *_: times.append(time.perf_counter()))
    (out / "times.json").write_text(json.dumps(times))
    (out / "model.safetensors").write_text("")

app = ServerApp()
client_app = ClientApp()
app.main()(serve)
client_app.train()(train)
"""


def measure(num_sites: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder), num_sites) as federation:
        project, notes = federation.project, Path(folder) / "notes"
        notes.mkdir()
        for name, text in (("timed", TIMED), ("ours", OURS), ("theirs", THEIRS)):
            (project / f"{name}.py").write_text(text.replace("@NOTES@", str(notes)))
        base = (project / "pyproject.toml").read_text()
        settings = {"method.name": "fedavg", "train.rounds": ROUNDS, "partition.clients": num_sites}
        found: dict[str, Any] = {"sites": num_sites}
        for name, server, client in (
            ("ours", "fedacd.flower.server:app", "ours:app"),
            ("flower", "theirs:app", "theirs:client_app"),
        ):
            text = base.replace("fedacd.flower.server:app", server).replace("fedacd.flower.client:app", client)
            (project / "pyproject.toml").write_text(text)
            out = federation.run(name, settings, 600)
            if name == "ours":
                seconds = [line["seconds"] for line in read_rounds(out)]
            else:
                times = json.loads((out / "times.json").read_text())
                seconds = [after - before for before, after in itertools.pairwise(times)]
            trained: dict[int, float] = {}
            for path in notes.glob(f"{name}-*"):
                note = json.loads(path.read_text())
                trained[note["round"]] = max(trained.get(note["round"], 0), note["seconds"])
            beyond = [second - trained[number] for number, second in enumerate(seconds, 1)][1:]
            found[name] = statistics.median(beyond)
            found[f"{name} rounds"] = [round(second, 1) for second in seconds]
        found["ratio"] = found["ours"] / found["flower"]
        return found


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(json.dumps(measure(int(text))), flush=True)
