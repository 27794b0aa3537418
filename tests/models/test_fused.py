"""Convolution, ReLU and pooling in one, against the three modules.

Without a GPU the kernels run in Triton's interpreter, on a CPU: what they compute is tested, not how fast; and they
are compiled for a GPU that is not there.
"""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fedacd.models import build, fused
from fedacd.models.net import wrap

K, B = 2, 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = 1e-5 if DEVICE == "cpu" else 3e-3
"""Relative to the largest number: the interpreter computes in float32, a GPU in tf32."""


@pytest.fixture(params=[False, True], ids=["pixel by pixel", "patches of images"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels take every input, the one for patches of images with few channels whatever the precision."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from fedacd.models import few_channels

    monkeypatch.setattr(fused, "_dtype", lambda x: x.dtype)
    monkeypatch.setattr(few_channels, "is_for", lambda x, kh, kw: request.param and x.shape[-1] == 4)


def three(channels: int, out: int, kernel: int, padding: int = 0) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)).to(DEVICE)


def one_of(module: nn.Module) -> nn.Module:
    """Another copy, its convolution changed whatever it computes."""
    other = copy.deepcopy(module)
    assert isinstance(other, nn.Sequential)
    other[0].__class__ = fused.ConvReluPool
    other[1], other[2] = nn.Identity(), nn.Identity()
    return other


def assert_close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=CLOSE * float(theirs.abs().max()))


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("channels", "out", "kernel", "padding", "size"),
    [
        (3, 16, 5, 0, 12),  # images: channels and kernel are padded
        (16, 32, 5, 0, 9),  # an odd number of pixels, of which pooling leaves the last out
        (1, 16, 3, 1, 8),
        (3, 48, 5, 0, 11),  # blocks of channels that are not full
        (20, 48, 3, 1, 7),  # no power of two anywhere
    ],
)
def test_outputs_and_gradients_of_stacked_clients(
    channels: int, out: int, kernel: int, padding: int, size: int
) -> None:
    theirs = three(channels, out, kernel, padding)
    mine = one_of(theirs)
    x = torch.randn(K, B, channels, size, size, device=DEVICE)
    weights = {name: 0.3 * torch.randn(K, *p.shape, device=DEVICE) for name, p in theirs.named_parameters()}

    def found(module: nn.Module) -> tuple[dict[str, Tensor], Tensor]:
        def loss(weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            y = functional_call(module, weights, (x,))
            return (y * y.detach().sin()).sum(), y

        (of_weights, of_x), y = vmap(grad(loss, argnums=(0, 1), has_aux=True))(weights, x)
        return of_weights | {"x": of_x, "y": y}, y

    for (name, value), expected in zip(found(mine)[0].items(), found(theirs)[0].values(), strict=True):
        assert value.shape == expected.shape, name
        assert_close(value, expected)


@pytest.mark.parametrize(
    ("clients", "samples", "size", "kernel", "out"),
    [
        (1, 40, (12, 12), 5, 16),  # 10 tiles in 3 turns of each program
        (2, 9, (14, 11), 3, 80),  # two blocks of channels
    ],
)
def test_tiles_of_patches_one_after_the_other(
    clients: int, samples: int, size: tuple[int, int], kernel: int, out: int
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from fedacd.models import few_channels, kernels

    x = torch.randn(clients, samples, *size, 4, device=DEVICE)
    w, bias = 0.3 * torch.randn(clients, out, kernel * kernel * 4, device=DEVICE), torch.randn(clients, out).to(DEVICE)
    pooled = kernels._pooled_like(x, w, kernel, kernel)
    pixel = kernels._pixels_like(pooled, True)
    few_channels.conv_relu_pool(x, w, bias, kernel, kernel, pooled, pixel)
    for k in range(clients):
        weight = w[k].reshape(out, kernel, kernel, 4).movedim(-1, 1)
        y = F.relu(F.conv2d(x[k].movedim(-1, 1), weight, bias[k]))
        expected, at = F.max_pool2d(y, 2, return_indices=True)
        W = y.shape[-1]
        assert_close(pooled[k].movedim(-1, 1), expected)
        which = torch.where(expected == 0, kernels.DEAD, at // W % 2 * 2 + at % W % 2)
        assert torch.equal(pixel[k].movedim(-1, 1), which.to(torch.uint8))


def test_which_layers_are_done_by_patches() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from fedacd.models.few_channels import is_for

    x = torch.zeros(1, 2, 8, 8, 4, dtype=torch.bfloat16)
    assert is_for(x, 5, 5) and is_for(x, 3, 3)
    assert not is_for(x, 7, 7) and not is_for(x.float(), 5, 5) and not is_for(x.repeat(1, 1, 1, 1, 4), 5, 5)


@pytest.mark.usefixtures("_kernels")
def test_one_client_alone_by_autograd() -> None:
    theirs = three(3, 16, 3)
    mine = one_of(theirs)
    x = torch.randn(B, 3, 8, 8, device=DEVICE)
    for module in (mine, theirs):
        module(x).square().sum().backward()
    for mine_p, theirs_p in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert mine_p.grad is not None
        assert theirs_p.grad is not None
        assert_close(mine_p.grad, theirs_p.grad)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("channels", [3, 16])
def test_without_a_gradient_outputs_are_the_same(channels: int) -> None:
    module = one_of(three(channels, 16, 5))
    x = torch.randn(B, channels, 12, 12, device=DEVICE)
    with torch.no_grad():
        without = module(x)
        traced = make_fx(vmap(module))(x[None])
    assert not without.requires_grad
    assert torch.equal(without, module(x))
    (node,) = [node for node in traced.graph.nodes if "fedacd" in str(node.target)]
    assert node.args[-1] is False


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("at", [0, 1, 5])
def test_what_is_not_a_number_stays_so(at: int) -> None:
    theirs = three(3, 16, 3)
    x = torch.randn(2, 3, 8, 8, device=DEVICE)
    x[0, 1, at, at] = torch.nan
    expected = theirs(x).isnan()
    assert expected.any()
    assert torch.equal(one_of(theirs)(x).isnan(), expected)


@pytest.mark.usefixtures("_kernels")
def test_no_gradient_of_images_is_computed_and_the_step_is_traced_whole() -> None:
    module = one_of(three(3, 16, 3))
    x = torch.randn(K, B, 3, 8, 8, device=DEVICE)
    weights = {name: torch.randn(K, *p.shape, device=DEVICE) for name, p in module.named_parameters()}

    def step(w: Tensor, b: Tensor, x: Tensor) -> dict[str, Tensor]:
        def loss(w: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = functional_call(module, w, (x,))
            return out.square().sum()

        gradient: dict[str, Tensor] = vmap(grad(loss))({"0.weight": w, "0.bias": b}, x)
        return gradient

    with torch.no_grad():  # as programs are traced; a gradient is asked for within
        graph = make_fx(step)(*weights.values(), x)
    ours = [str(node.target) for node in graph.graph.nodes if "fedacd" in str(node.target)]
    assert ours == ["fedacd.conv_relu_pool.default", "fedacd.conv_of_weight.default"]


@pytest.mark.usefixtures("_kernels")
def test_where_nothing_gets_through_there_is_no_gradient() -> None:
    """Worked out by hand: weights 0 and bias -1 give -1 everywhere, which ReLU stops; with bias +1 each of the 9
    windows passes 1 on, whose gradient reaches the bias: 9."""
    module = one_of(three(3, 16, 3))
    x = torch.randn(1, 3, 8, 8, device=DEVICE)
    weight = torch.zeros(16, 3, 3, 3, device=DEVICE)
    for value, gradient in ((-1.0, 0.0), (1.0, 9.0)):
        bias = torch.full((16,), value, device=DEVICE, requires_grad=True)
        out = functional_call(module, {"0.weight": weight, "0.bias": bias}, (x,))
        assert torch.equal(out, torch.full((1, 16, 3, 3), max(value, 0.0), device=DEVICE))
        (of_bias,) = torch.autograd.grad(out.sum(), bias)
        assert of_bias.tolist() == [gradient] * 16


def test_the_papers_cnn_is_changed_and_computes_the_same() -> None:
    net = build("cnn", (3, 32, 32), 10, {}, 0)
    other = fused.fused(net._body, net._example)
    kinds = [type(child) for child in other.modules()]
    assert kinds.count(fused.ConvReluPool) == 2
    assert nn.MaxPool2d not in kinds
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in net._body.named_parameters()]
    assert torch.equal(other(net._example), net._body(net._example))


@pytest.mark.parametrize(("name", "shape"), [("cnn", (3, 32, 32)), ("small-cnn", (1, 28, 28))])
def test_on_a_cpu_the_relu_comes_last_and_the_bits_stay(name: str, shape: tuple[int, int, int]) -> None:
    net = build(name, shape, 10, {}, 0)
    x = torch.randn(8, *shape)
    x[0] = 0  # windows of equal numbers
    mine, theirs = net.to("cpu")._body, net._body
    assert sum(isinstance(child, fused.ConvReluPool) for child in mine.modules()) == 2
    for module in (mine, theirs):
        module(x).square().sum().backward()
    assert torch.equal(mine(x), theirs(x))
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_a_linear_layer_takes_pixels_as_they_lie() -> None:
    mine, theirs = fused.FlatLinear(2 * 3 * 4, 5), nn.Linear(2 * 3 * 4, 5)
    mine.load_state_dict(theirs.state_dict())
    side_by_side = torch.randn(6, 3, 4, 2).movedim(-1, 1)
    for x in (side_by_side, side_by_side.contiguous()):
        for with_gradient in (True, False):
            with torch.set_grad_enabled(with_gradient):
                torch.testing.assert_close(mine(x), theirs(x.flatten(1)))


def test_the_papers_cnn_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    net = build("cnn", (3, 32, 32), 10, {}, 0)
    other, plain = fused.fused(net._body, net._example).to(DEVICE), net._body.to(DEVICE)
    assert sum(isinstance(child, fused.FlatLinear) for child in other.modules()) == 1
    monkeypatch.setattr(fused, "_dtype", lambda x: x.dtype)
    with torch.no_grad():
        assert_close(other(net._example.to(DEVICE)), plain(net._example.to(DEVICE)))


@pytest.mark.parametrize(("capability", "has"), [((9, 0), True), ((8, 0), True), ((8, 9), False), ((7, 5), False)])
def test_which_gpus_have_kernels(capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    fused._has_kernels.cache_clear()
    assert fused._has_kernels(torch.device("cuda:0")) is has
    fused._has_kernels.cache_clear()


class Flat(nn.Module):
    """Uses the flattened pixels beside the linear layer that follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10))
        self.norm = nn.LayerNorm(784)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(self.body[:4](x))
        return self.body[4](flat)  # type: ignore[no-any-return]


def _ends(*last: nn.Module, memory_format: torch.memory_format = torch.contiguous_format) -> nn.Module:
    conv = nn.Conv2d(3, 16, 3)
    conv.weight.data = conv.weight.data.contiguous(memory_format=memory_format)
    return nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), *last)


@pytest.mark.parametrize(
    ("module", "number"),
    [
        (_ends(nn.Flatten(), nn.Linear(784, 10)), 1),
        (_ends(nn.Flatten(), nn.Linear(784, 10), memory_format=torch.channels_last), 1),
        (Flat(), 0),
        (_ends(nn.Flatten(2), nn.Linear(49, 7), nn.Flatten(), nn.Linear(112, 10)), 0),
        (_ends(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), 0),
    ],
    ids=["plain", "channels last", "used twice", "not all of it", "pooled before"],
)
def test_where_a_linear_layer_takes_pixels(module: nn.Module, number: int) -> None:
    example = torch.randn(2, 3, 16, 16)
    other = fused.fused(module, example)
    kinds = [type(child) for child in other.modules()]
    assert (kinds.count(fused.FlatLinear), kinds.count(fused.ConvReluPool)) == (number, 1)
    with torch.no_grad():
        torch.testing.assert_close(other(example), module(example))


@pytest.mark.usefixtures("_kernels")
def test_an_input_too_large_for_their_offsets_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = three(3, 16, 3)
    other, x = one_of(module), torch.randn(2, 3, 8, 8, device=DEVICE)
    monkeypatch.setattr(fused, "MOST_NUMBERS", 2 * 8 * 8 * 18 - 1)
    assert torch.equal(other(x), module(x))


class Peeks(nn.Module):
    """Uses the convolution's output beside what is pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.body[0](x)
        pooled = self.body[2](self.body[1](seen))
        return self.head(torch.cat([seen.mean((2, 3)), pooled.mean((2, 3))], 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "module",
    [
        Peeks(),
        nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)),
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10)),
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.ELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 10)),
    ],
    ids=["its output is used twice", "strides", "threes", "no ReLU", "eight channels"],
)
def test_others_stay_as_they_are(module: nn.Module) -> None:
    net = wrap(module, (3, 16, 16), 10)
    assert not any(isinstance(child, fused.ConvReluPool) for child in fused.fused(net._body, net._example).modules())


@pytest.mark.parametrize(("at", "shape"), [(1, (5, 16, 14, 14)), (3, (5, 784)), (4, (5, 10))], ids=str)
def test_a_layer_that_is_watched_stays_as_it_is(at: int, shape: tuple[int, ...]) -> None:
    module = _ends(nn.Flatten(), nn.Linear(784, 10))
    seen: list[tuple[torch.Size, torch.Size]] = []
    layer = module[at]  # type: ignore[index]
    layer.register_forward_hook(lambda _, given, out: seen.append((given[0].shape, out.shape)))
    x = torch.randn(5, 3, 16, 16)
    other = fused.fused(module, x)
    seen.clear()
    other(x), module(x)
    mine, theirs = seen
    assert mine == theirs and mine[1] == shape


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU to run the kernels on")
def test_the_kernels_compile_for_a_gpu() -> None:
    """For Hopper, in both precisions, with matrix instructions and within a block's memory."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["compiled"] * 12


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fedacd.models import few_channels, kernels

def check(kernel, pointers, num_stages=3, **fixed):
    names = kernel.arg_names
    kinds = {name: pointers.get(name, "constexpr" if name in fixed else "i32") for name in names}
    values = {(names.index(name),): value for name, value in fixed.items()}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in pointers}
    source, hopper = ASTSource(kernel, kinds, values, aligned), GPUTarget("cuda", 90, 32)
    made = compile(source, target=hopper, options={"num_warps": 4, "num_stages": num_stages})
    code = made.asm["ptx"]
    assert "mma" in code and made.metadata.shared < 228 * 1024
    assert "ld.global.b16" not in code, "numbers are read one by one"
    print("compiled")
    return made

for kind in ("*bf16", "*fp32"):
    layer = {"H": 14, "W": 14, "C": 64, "N": 64, "KH": 5, "J": 320, "BN": 64}
    pooled = layer | {"PH": 5, "PW": 5}
    data = {"x": kind, "w": kind, "bias": kind, "out": kind, "gradient": kind, "pixel": "*u8"}
    check(kernels._forward_kernel, data, **pooled, BW=64, BJ=32, KEEP=True)
    of_images = pooled | {"H": 32, "W": 32, "C": 4, "J": 20, "PH": 14, "PW": 14}
    check(kernels._forward_kernel, data, **of_images, BW=64, BJ=32, KEEP=False)
    check(kernels._of_weight_kernel, data | {"out": "*fp32"}, **of_images, BW=16, BJ=128, PARTS=15, EACH=837)
    check(kernels._convolution_kernel, data, **layer, OH=10, OW=10, BM=128, BJ=32)
    check(kernels._of_weight_kernel, data | {"out": "*fp32"}, **pooled, BW=16, BJ=128, PARTS=2, EACH=800)
    if kind == "*bf16":
        for keep in (False, True):
            taps = {"BW": 64, "MAIN": 128, "REST": 16, "EACH": 18, "KEEP": keep}
            patches = check(few_channels._patch_kernel, data, 1, **of_images, **taps)
            assert patches.metadata.shared <= 113 * 1024, "no room for two on a multiprocessor"
"""
