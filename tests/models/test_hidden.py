"""What a model's outputs do not show in evaluation, with its initial parameters, or on an input that it has changed."""

import copy
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedacd.errors import ModelError
from fedacd.models import fused, wrap

SHAPE = (3, 8, 8)
C = 5


class Peeks(nn.Module):
    """Uses the convolution's output beside what is pooled, in a way of its own."""

    def __init__(self, peek: Callable[["Peeks", Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.gate = nn.Parameter(torch.zeros(()))
        self.proj = nn.Linear(16, 16)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)
        self.head = nn.Linear(16, C)
        self.peek = peek

    def forward(self, x: Tensor) -> Tensor:
        f = self.body(x).mean((2, 3)) + self.peek(self, self.body[0](x).mean((2, 3)))
        return self.head(f)  # type: ignore[no-any-return]


PEEKS: dict[str, Callable[[Peeks, Tensor], Tensor]] = {
    "a gate at zero": lambda m, a: m.gate * a,
    "a gate that opens to one side": lambda m, a: m.gate.clamp(0, 1) * a,
    "a gate that opens to the other side": lambda m, a: m.gate.clamp(-1, 0) * a,
    "a layer at zero": lambda m, a: m.proj(a),
    "in training alone": lambda m, a: a if m.training else 0 * a,
}


def in_one(module: nn.Module) -> int:
    return sum(isinstance(child, fused.ConvReluPool) for child in module.modules())


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("why", PEEKS)
def test_a_use_that_does_not_show_at_first(why: str, flatten: bool) -> None:
    assert in_one(fused.fused(Peeks(PEEKS[why]), torch.randn(2, *SHAPE), flatten=flatten)) == 0


class Odd(nn.Module):
    """Tied weights, a parametrization, a buffer, constants and draws."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        three = (nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(*three, nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 16))
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.b.weight = self.a.weight
        self.c = parametrizations.weight_norm(nn.Linear(16, 16))
        self.register_buffer("scale", torch.tensor(2.0))
        self.order = nn.Parameter(torch.arange(15, -1, -1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        f = self.scale * self.c(self.b(self.a(self.body(x))))
        if self.training and random.random() + np.random.random() < 1:
            f = f + F.dropout(f)
        return f[:, self.order]  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_rest_of_a_module_may_be_anything_and_is_left_alone(seed: int, dtype: torch.dtype) -> None:
    module = Odd().to(dtype).eval()
    before = copy.deepcopy(module.state_dict())
    for seeded in (torch.manual_seed, random.seed, np.random.seed):
        seeded(seed)
    other = fused.fused(module, torch.randn(2, *SHAPE, generator=torch.Generator(), dtype=dtype))
    assert in_one(other) == 1 and not other.training
    assert other.b.weight is other.a.weight  # type: ignore[union-attr]
    for mine in (module.state_dict(), other.state_dict()):
        torch.testing.assert_close(mine, before, rtol=0, atol=0)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(seed)))
    assert (random.random(), np.random.random()) == (random.Random(seed).random(), np.random.RandomState(seed).random())


def layers(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Dropout(0.5), nn.Linear(16, C), *last)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training))


def watched(register: str, hook: Callable[..., object]) -> nn.Module:
    module = layers()
    getattr(module[3], register)(hook)
    return module


NO_HEAD: dict[str, Callable[[], nn.Module]] = {
    "dropout behind it": lambda: layers(nn.Dropout(0.5)),
    "dropout within it": lambda: nn.Sequential(nn.Flatten(), Noisy(192, C)),
    "a hook before": lambda: watched("register_forward_pre_hook", lambda m, x: F.dropout(x[0], 0.5, m.training)),
    "a hook behind": lambda: watched("register_forward_hook", lambda m, x, y: y + m.training),
    "a hook for gradients": lambda: watched("register_full_backward_hook", lambda m, x, y: (x[0] / 10,)),
    "a hook before gradients": lambda: watched("register_full_backward_pre_hook", lambda m, y: (y[0] / 10,)),
}


@pytest.mark.parametrize("why", NO_HEAD)
def test_what_a_head_does_in_training_alone_is_kept(why: str) -> None:
    module = NO_HEAD[why]()
    net, x, y = wrap(module, SHAPE, C), torch.randn(4, *SHAPE), torch.arange(4)
    assert net.num_features is None
    params = {name: p.clone().requires_grad_() for name, p in net.initial.items()}
    torch.manual_seed(1)
    mine = torch.autograd.grad(F.cross_entropy(net(params, x)[1], y), list(params.values()))
    torch.manual_seed(1)
    theirs = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("why", NO_HEAD)
def test_such_a_head_with_a_name_is_refused(why: str) -> None:
    reason = "it has hooks" if "hook" in why else "the forward does not end in it"
    module = NO_HEAD[why]()
    with pytest.raises(ModelError, match=rf"is not the head of model 'Sequential': {reason}"):
        wrap(module, SHAPE, C, head=str(len(module) - 1 - ("behind it" in why)))  # type: ignore[arg-type]


class Depth(nn.Module):
    """Leaves a layer out at random, by numbers that are not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(192, 16), nn.Linear(16, 16), nn.Linear(16, C)

    def forward(self, x: Tensor) -> Tensor:
        f = F.dropout(self.a(x.flatten(1)), 0.5, self.training)
        for draw in (random.random, np.random.random) if self.training else ():
            f = self.b(f) if draw() < 0.5 else f
        return self.head(f)  # type: ignore[no-any-return]


def test_draws_before_the_head_do_not_hide_it() -> None:
    for seed in range(8):
        random.seed(seed)
        np.random.seed(seed)
        assert wrap(Depth(), SHAPE, C).num_features == 16


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(192, 16), nn.Linear(16, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x.mul_(2).add_(0.1).flatten(1)).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("head", [None, "head"])
def test_a_model_that_changes_its_input_keeps_its_head(head: str | None) -> None:
    module = InPlace()
    net, x = wrap(module, SHAPE, C, head), torch.randn(4, *SHAPE)
    assert net.head_names == ("head.weight", "head.bias")
    for _ in range(2):
        torch.testing.assert_close(net(net.initial, x)[1], module(x.clone()))
