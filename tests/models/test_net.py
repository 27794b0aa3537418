"""B batch, C classes, D features."""

import copy
import functools
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedacd.errors import ModelError
from fedacd.models import Net, build, wrap

SHAPE = (3, 8, 8)
C = 5


def images(num: int = 4) -> Tensor:
    return torch.randn(num, *SHAPE, generator=torch.Generator().manual_seed(1))


class Plain(nn.Module):
    """Two linear layers of C outputs, the last one the head, and a constant."""

    shift: Tensor

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(192, C)
        self.norm = nn.GroupNorm(1, C)
        self.fc = nn.Linear(C, C, bias=bias)
        self.register_buffer("shift", torch.ones(C))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.norm(self.first(x.flatten(1))) + self.shift)
        return out


def test_a_forward_that_works_in_place_leaves_its_images_alone() -> None:
    net = wrap(nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, C)), SHAPE, C)
    x = images()
    before = x.clone()
    first, second = (net(net.initial, x)[1] for _ in range(2))
    assert torch.equal(x, before)
    assert torch.equal(first, second)


def loss(net: Net, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(params, x)[1], y)


class TestNet:
    @pytest.mark.parametrize("bias", [True, False])
    def test_equals_the_module(self, bias: bool) -> None:
        module = Plain(bias)
        net = wrap(module, SHAPE, C)
        f, logits = net(net.initial, images())
        assert f is not None
        torch.testing.assert_close(logits, module(images()), rtol=0, atol=1e-6)
        assert f.shape == (4, C)
        assert net.head_names == (("fc.weight", "fc.bias") if bias else ("fc.weight",))
        assert (net.num_classes, net.num_features) == (C, C)

    def test_initial_is_a_copy_of_the_named_parameters(self) -> None:
        module = Plain().double()
        module.first.weight.data = module.first.weight.data.t().contiguous().t()
        net = wrap(module, SHAPE, C)
        assert list(net.initial) == [name for name, _ in module.named_parameters()]
        for name, p in module.named_parameters():
            t = net.initial[name]
            assert t.dtype == torch.float32 and t.is_contiguous() and not t.requires_grad
            assert torch.equal(t, p.detach().float())
            t.zero_()
            assert p.detach().abs().sum() > 0 or name == "norm.bias"

    def test_uses_the_given_parameters_alone(self) -> None:
        module = Plain()
        net = wrap(module, SHAPE, C)
        other = {name: torch.randn_like(t) for name, t in net.initial.items()}
        before = {name: t.clone() for name, t in other.items()}
        expected = copy.deepcopy(module)
        expected.load_state_dict(other, strict=False)
        torch.testing.assert_close(net(other, images())[1], expected(images()), rtol=1e-5, atol=1e-5)
        for name, t in before.items():
            assert torch.equal(other[name], t)
        with pytest.raises(KeyError, match=r"first\.bias"):
            net({name: t for name, t in other.items() if name != "first.bias"}, images())

    def test_features_need_no_head_and_head_no_body(self) -> None:
        net = wrap(Plain(), SHAPE, C)
        body = {name: t for name, t in net.initial.items() if name not in net.head_names}
        head = {name: net.initial[name] for name in net.head_names}
        f, logits = net(net.initial, images())
        assert torch.equal(net.features(body, images()), torch.as_tensor(f))
        assert torch.equal(net.head(head, torch.as_tensor(f)), logits)

    # Twenty layers deep, rounding has grown to a few 1e-6 in features of size 1.
    @pytest.mark.parametrize(("name", "tolerance"), [("small-cnn", 1e-6), ("resnet18", 1e-5)])
    def test_vmap_over_stacked_parameters_equals_a_loop(self, name: str, tolerance: float) -> None:
        net, other = (build(name, SHAPE, C, {}, seed) for seed in range(2))
        stacked = {key: torch.stack([net.initial[key], other.initial[key]]) for key in net.initial}
        x = torch.stack([images(), -images()])
        y = torch.arange(8).reshape(2, 4) % C
        f, logits = vmap(net)(stacked, x)
        grads = vmap(grad(functools.partial(loss, net)))(stacked, x, y)
        assert f is not None
        for k, params in enumerate((net.initial, other.initial)):
            for got, expected in zip((f[k], logits[k]), net(params, x[k]), strict=True):
                torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
            for key, expected in grad(functools.partial(loss, net))(params, x[k], y[k]).items():
                torch.testing.assert_close(grads[key][k], expected, rtol=1e-4, atol=tolerance)

    def test_grad_equals_backward(self) -> None:
        module = Plain()
        net = wrap(module, SHAPE, C)
        y = torch.tensor([0, 1, 2, 3])
        expected = torch.autograd.grad(F.cross_entropy(module(images()), y), list(module.parameters()))
        grads = grad(functools.partial(loss, net))(net.initial, images(), y)
        assert list(grads) == list(net.initial)
        torch.testing.assert_close(tuple(grads.values()), expected, rtol=1e-5, atol=1e-6)

    def test_compiles_as_one_graph(self) -> None:
        net = wrap(Plain(), SHAPE, C)
        _, logits = torch.compile(net.__call__, backend="eager", fullgraph=True)(net.initial, images())
        torch.testing.assert_close(logits, net(net.initial, images())[1])

    def test_train_switches_dropout(self) -> None:
        net = wrap(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, C)), SHAPE, C)
        assert net.num_features == 192
        net.train(False)
        assert torch.equal(net.features(net.initial, images()), images().flatten(1))
        net.train(True)
        assert (net.features(net.initial, images()) == 0).float().mean() > 0.3

    def test_to_copies_the_constants(self) -> None:
        net = wrap(Plain(), SHAPE, C)
        other = net.to("meta")
        params = {name: t.to("meta") for name, t in net.initial.items()}
        assert other(params, images().to("meta"))[1].shape == (4, C)
        assert {t.device.type for t in other.initial.values()} == {"cpu"}
        assert net(net.initial, images())[1].device.type == "cpu"

    def test_can_be_sent_to_another_process(self) -> None:
        net = wrap(Plain(), SHAPE, C)
        copied = pickle.loads(pickle.dumps(net))
        assert torch.equal(copied(net.initial, images())[1], net(net.initial, images())[1])


class Forward(nn.Module):
    """Two linear layers put together by a function."""

    def __init__(self, forward: Callable[["Forward", Tensor], object], bias: bool = True) -> None:
        super().__init__()
        self.a = nn.Linear(192, 16)
        self.b = nn.Linear(16, C, bias=bias)
        self.function = forward

    def forward(self, x: Tensor) -> object:
        return self.function(self, x.flatten(1))


NO_HEAD: dict[str, Callable[[Forward, Tensor], object]] = {
    "softmax at the end": lambda m, x: m.b(m.a(x)).log_softmax(1),
    "relu at the end": lambda m, x: m.b(m.a(x)).relu(),
    "residual": lambda m, x: m.b(m.a(x)) + x[:, :C],
    "weight by hand": lambda m, x: F.linear(m.a(x), m.b.weight, m.b.bias),
    "three-dimensional features": lambda m, x: m.b(m.a(torch.stack([x, -x], 1))).amax(1),
    "features of one image for all": lambda m, x: m.b(m.a(0 * x))[: 1 if isinstance(m.b, nn.Identity) else None],
    "not used": lambda m, x: m.a(x)[:, :C],
}


class TestHead:
    @pytest.mark.parametrize("why", NO_HEAD)
    def test_a_forward_that_does_not_end_in_it_has_logits_alone(self, why: str) -> None:
        module = Forward(NO_HEAD[why])
        net = wrap(module, SHAPE, C)
        f, logits = net(net.initial, images())
        assert f is None and net.head_names == () and net.num_features is None
        torch.testing.assert_close(logits, module(images()), rtol=0, atol=1e-6)
        assert list(net.initial) == ["a.weight", "a.bias", "b.weight", "b.bias"]
        for use in (net.features, net.head):
            with pytest.raises(ModelError, match="no features"):
                use(net.initial, images())

    @pytest.mark.parametrize("why", NO_HEAD)
    def test_named_it_is_an_error(self, why: str) -> None:
        with pytest.raises(ModelError, match=r"model\.head = 'b' is not the head of model 'Forward': the "):
            wrap(Forward(NO_HEAD[why]), SHAPE, C, head="b")

    def test_a_head_that_starts_at_zero_is_still_checked(self) -> None:
        good, bad = Forward(lambda m, x: m.b(m.a(x))), Forward(NO_HEAD["relu at the end"])
        for module in (good, bad):
            nn.init.zeros_(module.b.weight)
            nn.init.zeros_(module.b.bias)
        assert wrap(good, SHAPE, C).num_features == 16
        assert wrap(bad, SHAPE, C).num_features is None

    def test_the_last_linear_of_c_outputs_or_the_named_one(self) -> None:
        # In module order the head comes first here, so it has to be named.
        module = nn.ModuleDict({"head": nn.Linear(C, C), "body": nn.Linear(192, C)})

        class Net2(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, x: Tensor) -> object:
                return self.inner["head"](self.inner["body"](x.flatten(1)))

        assert wrap(Net2(), SHAPE, C).num_features is None
        assert wrap(Net2(), SHAPE, C, head="inner.head").head_names == ("inner.head.weight", "inner.head.bias")
        named = Net2()
        named.head_name = "inner.head"  # type: ignore[assignment]
        assert wrap(named, SHAPE, C).num_features == C

    @pytest.mark.parametrize(
        ("head", "message"),
        [
            ("fcc", r"model.head of model 'Plain': unknown nn.Linear 'fcc'. Did you mean 'fc'\?"),
            ("norm", r"model.head of model 'Plain': unknown nn.Linear 'norm'"),
            ("first", r"model.head = 'first' is not the head of model 'Plain': "),
        ],
    )
    def test_a_wrong_name(self, head: str, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            wrap(Plain(), SHAPE, C, head=head)

    def test_a_layer_of_other_width(self) -> None:
        with pytest.raises(ModelError, match=r"it has 16 outputs for 5 classes"):
            wrap(Forward(lambda m, x: m.b(m.a(x))), SHAPE, C, head="a")

    def test_weights_shared_with_the_body(self) -> None:
        class Tied(nn.Module):
            def __init__(self, head_first: bool) -> None:
                super().__init__()
                first, second = nn.Linear(C, C), nn.Linear(C, C)
                second.weight = first.weight
                self.layers = nn.ModuleDict({"fc": first, "a": second} if head_first else {"a": first, "fc": second})

            def forward(self, x: Tensor) -> object:
                return self.layers["fc"](self.layers["a"](x[:, 0, 0, :C]))

        for head_first, reason in ((True, "shares parameters"), (False, "not trainable parameters of its own")):
            module = Tied(head_first)
            with pytest.raises(ModelError, match=reason):
                wrap(module, SHAPE, C, head="layers.fc")
            net = wrap(module, SHAPE, C)
            doubled = {name: 2 * t for name, t in net.initial.items()}
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(2)
            torch.testing.assert_close(net(doubled, images())[1], module(images()))


class TestFrozen:
    def test_a_frozen_parameter_is_a_constant(self) -> None:
        module = Plain()
        module.first.requires_grad_(False)
        net = wrap(module, SHAPE, C)
        assert list(net.initial) == ["norm.weight", "norm.bias", "fc.weight", "fc.bias"]
        torch.testing.assert_close(net(net.initial, images())[1], module(images()))

    def test_a_frozen_head_is_none(self) -> None:
        module = Plain()
        module.fc.bias.requires_grad_(False)
        net = wrap(module, SHAPE, C)
        assert net.head_names == () and "fc.weight" in net.initial and "fc.bias" not in net.initial
        with pytest.raises(ModelError, match="not trainable parameters of its own"):
            wrap(module, SHAPE, C, head="fc")

    def test_nothing_to_train(self) -> None:
        with pytest.raises(ModelError, match="no trainable parameters"):
            wrap(Plain().requires_grad_(False), SHAPE, C)
        with pytest.raises(ModelError, match="no trainable parameters"):
            wrap(nn.Sequential(nn.AdaptiveAvgPool3d((C, 1, 1)), nn.Flatten()), SHAPE, C)


def lazy(kind: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls lazy modules new
        return kind()


class TestRefused:
    @pytest.mark.parametrize(
        "layer",
        [
            lambda: nn.BatchNorm2d(3),
            lambda: nn.BatchNorm2d(3, track_running_stats=False),
            lambda: nn.SyncBatchNorm(3),
            lambda: nn.LazyBatchNorm2d(),
            lambda: nn.InstanceNorm2d(3, track_running_stats=True),
            lambda: nn.LazyInstanceNorm2d(track_running_stats=True),
        ],
    )
    def test_running_statistics(self, layer: Callable[[], nn.Module]) -> None:
        module = nn.Sequential(nn.Sequential(lazy(layer)), nn.Flatten(), nn.Linear(192, C))
        with pytest.raises(ModelError, match=r"layer '0.0' is .*Norm.* not averaged.* Use nn.GroupNorm"):
            wrap(module, SHAPE, C)

    def test_instance_norm_without_statistics_is_fine(self) -> None:
        module = nn.Sequential(nn.InstanceNorm2d(3), nn.Flatten(), nn.Linear(192, C))
        assert wrap(module, SHAPE, C).num_features == 192

    @pytest.mark.parametrize("in_place", [True, False])
    def test_a_forward_that_changes_a_buffer(self, in_place: bool) -> None:
        class Counting(Plain):
            def forward(self, x: Tensor) -> Tensor:
                if self.training and in_place:
                    self.shift += 1
                elif self.training:
                    self.shift = self.shift + 1
                return super().forward(x)

        module = Counting()
        with pytest.raises(ModelError, match="forward changes the buffer 'shift'"):
            wrap(module, SHAPE, C)
        assert torch.equal(module.shift, torch.ones(C))

    def test_images_that_do_not_fit(self) -> None:
        with pytest.raises(ModelError, match=r"model 'mine' fails on images of 3x9x8 .*: RuntimeError: .*216"):
            wrap(Plain(), (3, 9, 8), C, name="mine")

    @pytest.mark.parametrize(
        ("forward", "got"),
        [
            (lambda m, x: m.a(x), r"\(2, 16\)"),
            (lambda m, x: m.b(m.a(x)).sum(0), r"\(5,\)"),
            (lambda m, x: (m.a(x), m.b(m.a(x))), "tuple"),
        ],
    )
    def test_wrong_logits(self, forward: Callable[[Forward, Tensor], object], got: str) -> None:
        with pytest.raises(ModelError, match=rf"'Forward' .*3x8x8 .*shape \(2, 5\) .*expected, got {got}"):
            wrap(Forward(forward), SHAPE, C)

    def test_wrong_logits_in_training_mode_alone(self) -> None:
        module = Forward(lambda m, x: (m.b(m.a(x)), x) if m.training else m.b(m.a(x)))
        with pytest.raises(ModelError, match=r"in training mode: .*got tuple"):
            wrap(module, SHAPE, C)

    def test_a_lazy_module_is_materialised(self) -> None:
        module = nn.Sequential(nn.Flatten(), lazy(lambda: nn.LazyLinear(7)), nn.ReLU(), lazy(lambda: nn.LazyLinear(C)))
        net = wrap(module, SHAPE, C)
        assert [tuple(t.shape) for t in net.initial.values()] == [(7, 192), (7,), (C, 7), (C,)]
        assert net.num_features == 7

    def test_a_lazy_layer_that_is_not_used(self) -> None:
        module = Plain()
        module.spare = lazy(lambda: nn.LazyLinear(3))
        with pytest.raises(ModelError, match="lazy layer"):
            wrap(module, SHAPE, C)


def test_wrap_leaves_the_module_and_the_global_rng_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), lazy(lambda: nn.LazyLinear(C))).eval()
    state = torch.get_rng_state()
    wrap(module, SHAPE, C)
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(module[2], nn.LazyLinear) and not module.training
