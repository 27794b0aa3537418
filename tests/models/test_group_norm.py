"""GroupNorms whose input needs no gradient. Torch 2.13 dies of them on a CPU: they are trained in another process."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedacd
from fedacd.data import Dataset
from fedacd.files import read_safetensors
from fedacd.models import Net, build, wrap

ROOT = Path(__file__).parents[2]
C = 3


def behind_frozen(in_channels: int) -> nn.Module:
    conv = nn.Conv2d(in_channels, 4, 3, padding=1).requires_grad_(False)
    return _ended(conv, nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4))


def first(in_channels: int) -> nn.Module:
    return _ended(nn.GroupNorm(1, in_channels), nn.Conv2d(in_channels, 4, 3, padding=1))


class ByKeyword(nn.GroupNorm):
    """A subclass, which is called by keyword."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class OfASubclass(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.norm = ByKeyword(1, in_channels)
        self.rest = _ended(nn.Conv2d(in_channels, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.rest(self.norm(input=x))
        return logits


def _ended(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, C))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "behind frozen": behind_frozen, "first": first, "of a subclass": OfASubclass
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "loop": {"run.workers": 1}, "slots": {"run.workers": 1, "run.slots": 2}, "workers": {"run.workers": 2}
}  # fmt: skip


def train(model: str, channels: int, precision: str, out: str) -> None:
    """In every way, from the same start."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(256, size=(150, 8, 8, channels), dtype=np.uint8), np.arange(150) % C
    data = Dataset.from_arrays(x[:120], y[:120], x[120:], y[120:], name="noise")
    small: dict[str, Any] = {"clients": 4, "participation": 0.5, "rounds": 1, "epochs": 1, "batch_size": 20}
    for way, settings in WAYS.items():
        settings = settings | {"run.precision": precision, "run.threads": 1}
        fedacd.run(settings, dataset=data, model=MODELS[model], method="fedavg", out=f"{out}/{way}", **small)


# With one channel the images' layout is both.
@pytest.mark.parametrize(
    ("model", "channels", "precision"),
    [(model, channels, "fp32") for model in MODELS for channels in (1, 3)] + [("behind frozen", 3, "bf16")],
)
def test_trains_alike_in_every_way(model: str, channels: int, precision: str, tmp_path: Path) -> None:
    call = f"train({model!r}, {channels}, {precision!r}, {str(tmp_path)!r})"
    code = f"from {__name__} import train; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {way: read_safetensors(tmp_path / way / "model.safetensors", "model")[0] for way in WAYS}
    for name, w in found["loop"].items():
        assert torch.equal(w, found["workers"][name])
        torch.testing.assert_close(w, found["slots"][name], rtol=0, atol=1e-5 if precision == "fp32" else 1e-2)


def norms(net: Net) -> list[nn.GroupNorm]:
    return [layer for layer in net._body.modules() if isinstance(layer, nn.GroupNorm)]


def test_an_input_is_copied_where_torch_would_crash_and_nowhere_else() -> None:
    taken: list[Tensor] = []

    class Watching(nn.GroupNorm):
        def forward(self, input: Tensor) -> Tensor:
            taken.append(input)
            return super().forward(input)

    norm = norms(wrap(_ended(Watching(2, 4)), (4, 8, 8), C).to("cpu"))[0]
    x = torch.randn(2, 8, 8, 4).movedim(-1, -3)

    def copied(x: Tensor) -> bool:
        norm(x)
        return taken[-1].data_ptr() != x.data_ptr()

    assert copied(x)
    assert taken[-1].is_contiguous() and torch.equal(taken[-1], x)
    assert not copied(x.clone().requires_grad_())
    with torch.no_grad():
        assert not copied(x)
    norm.requires_grad_(False)
    assert not copied(x)


def test_on_other_devices_and_in_the_model_itself_nothing_is_in_the_way() -> None:
    net = wrap(behind_frozen(3), (3, 8, 8), C)
    on_cpu, elsewhere = net.to("cpu"), net.to("meta")
    assert all(norm._forward_pre_hooks for norm in norms(on_cpu))
    assert not any(norm._forward_pre_hooks for norm in norms(net) + norms(elsewhere))
    assert (on_cpu.description, on_cpu.code()) == (net.description, net.code())
    for name, constant in on_cpu.constants().items():
        assert torch.equal(constant, net.constants()[name])


def test_such_a_network_can_be_sent_to_another_process() -> None:
    net = wrap(behind_frozen(3), (3, 8, 8), C).to("cpu")
    copied = pickle.loads(pickle.dumps(net))
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(copied(net.initial, x)[1], net(net.initial, x)[1])


def test_a_gradient_of_resnet18_keeps_its_bits() -> None:
    net = build("resnet18", (3, 8, 8), C, {}, seed=0)
    x = torch.randn(2, 8, 8, 3).movedim(-1, -3)
    mine, theirs = (gradient(each, x) for each in (net.to("cpu"), net))
    assert all(map(torch.equal, mine, theirs))


def gradient(net: Net, x: Tensor) -> tuple[Tensor, ...]:
    params = {name: w.clone().requires_grad_() for name, w in net.initial.items()}
    return torch.autograd.grad(net(params, x)[1].square().sum(), list(params.values()))
