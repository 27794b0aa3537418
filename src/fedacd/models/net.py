"""The functional face of a model: parameters go in by hand, so that a step of one client can be vmapped and compiled.

What a model must be (`wrap` checks it with a probe):

- An nn.Module whose forward takes images [B, channels, H, W] and returns logits [B, C].
- Its **head** is an nn.Linear with C outputs and no hooks in which the forward ends, in training as in evaluation;
  the head's input [B, D] is 'the features'.
  It is the layer named by the option `model.head` or by the attribute `head_name` of the module, or else the last
  nn.Linear with C outputs. A named head that does not fit is an error. Without a head a model has logits alone:
  methods that work on features refuse it.
- Trainable parameters are what clients send. A parameter with requires_grad=False is a constant, the same everywhere;
  a head with such a parameter does not count as one. Buffers are constants too, and a forward must not change them.
- No BatchNorm. Dropout draws from torch's global generator, which the engine seeds for every client's round.

B batch, C classes, D features.
"""

import copy
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from fedacd.errors import ModelError, unknown
from fedacd.lookup import code_mark, package_of
from fedacd.models.fused import ConvReluPool, fused, is_watched, outputs

Shape = tuple[int, int, int]
Params = Mapping[str, Tensor]


class Net:
    """`net(params, x)` -> features [B, D] and logits [B, C]; pure, apart from `train`."""

    head_names: tuple[str, ...]
    """Names of the head's weight and, if it has one, bias; empty where the model has no head."""
    description: str
    """Parameters of the module, and a mark of its layers and their code."""
    initial: dict[str, Tensor]
    """The trainable parameters at the start: fp32, on the CPU."""
    fused: bool
    """Whether layers are computed by kernels, which need little memory beside their output."""

    def __init__(self, module: nn.Module, num_classes: int, head: str | None, example: Tensor) -> None:
        """`head` must have been checked, with an input such as `example`; use `wrap`."""
        self.num_classes, self._example = num_classes, example
        self.initial = {
            name: p.detach().clone(memory_format=torch.contiguous_format)
            for name, p in module.named_parameters()
            if p.requires_grad
        }
        self.num_features: int | None = None
        self.head_names = ()
        self._body = module
        self._bf16, self.fused = False, False
        self._changes_input = example._version > 0  # by the probes, in place
        self.description = _description(module)
        if head is not None:
            linear = _linear(module, head)
            self.num_features = linear.in_features
            self.head_names = _head_names(linear, head)
            self._body = _without(module, head)
        self._body_names = tuple(name for name in self.initial if name not in self.head_names)
        self.train(True)

    def __call__(self, params: Params, x: Tensor) -> tuple[Tensor | None, Tensor]:
        if not self.head_names:
            return None, self._run_body(params, x)
        f = self.features(params, x)
        return f, self.head(params, f)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Features [B, D]; the head's parameters need not be among `params`."""
        self._need_head()
        return self._run_body(params, x)

    def head(self, params: Params, f: Tensor) -> Tensor:
        """Logits [B, C] of features [B, D]."""
        self._need_head()
        return F.linear(f, *(params[name] for name in self.head_names))

    def train(self, mode: bool) -> None:
        """Switch dropout and its like on or off."""
        self._body.train(mode)

    def to(self, device: torch.device | str, *, bf16: bool = False) -> Self:
        """A copy whose constants lie on `device`; `initial` stays on the CPU.

        `bf16` lets forward and backward passes compute in bfloat16; parameters and outputs are float32 all the same.
        """
        other = copy.copy(self)
        gpu = torch.device(device).type == "cuda"
        other._body = fused(self._body, self._example, flatten=gpu).to(device)
        if torch.device(device).type == "cpu":
            _guard_group_norms(other._body)
        other._bf16 = bf16
        other.fused = gpu and any(isinstance(layer, ConvReluPool) for layer in other._body.modules())
        return other

    def constants(self) -> dict[str, Tensor]:
        """What the network computes with beside its trainable parameters."""
        frozen = {name: p.detach() for name, p in self._body.named_parameters() if not p.requires_grad}
        return frozen | dict(self._body.named_buffers())

    def code(self) -> str:
        """The classes of all layers and their attributes: what else they compute with. Means nothing elsewhere."""
        layers = list(self._body.modules())
        own = [{k: v for k, v in vars(layer).items() if k[0] != "_" and k != "training"} for layer in layers]
        return repr([(id(type(layer)), attributes) for layer, attributes in zip(layers, own, strict=True)])

    def _run_body(self, params: Params, x: Tensor) -> Tensor:
        # Picked by name: functional_call would quietly use the module's own value for a parameter that is missing.
        mine = {name: params[name] for name in self._body_names}
        if self._changes_input:
            x = x.clone()
        if not self._bf16:
            out: Tensor = functional_call(self._body, mine, (x,))
            return out
        # The weight cache keeps casts of leaves that require gradients; a functional step has none to reuse.
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            out = functional_call(self._body, mine, (x,))
        return out.to(x.dtype)

    def _need_head(self) -> None:
        if not self.head_names:
            raise ModelError(
                "this model has no features: its forward does not end in an nn.Linear with one output per class. "
                "Choose a model or a method that can do without them, or name the layer with model.head."
            )


def wrap(module: nn.Module, shape: Shape, num_classes: int, head: str | None = None, *, name: str | None = None) -> Net:
    """Make a `Net` of a copy of `module`, for images of `shape` (channels, H, W); `name` is for messages."""
    name = name or type(module).__name__
    _refuse_running_statistics(module, name)
    try:
        module = copy.deepcopy(module).float().cpu()
    except Exception as error:
        raise ModelError(f"model '{name}' cannot be copied: {_reason(error)}") from error
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = _noise(2, *shape)
        _probe(module.eval(), x, num_classes, name)  # also gives lazy layers their parameters
        _refuse_changing_buffers(module, x, num_classes, name)
        if any(is_lazy(p) for p in module.parameters()):
            raise ModelError(f"model '{name}' has a lazy layer that its forward does not use: leave it out.")
        if not any(p.requires_grad for p in module.parameters()):
            raise ModelError(f"model '{name}' has no trainable parameters.")
        return Net(module, num_classes, _find_head(module, num_classes, head, x, name), x)


def _noise(*shape: int) -> Tensor:
    # A generator of its own leaves the global one alone; device and type hold whatever torch's defaults are set to.
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)


def _probe(module: nn.Module, x: Tensor, num_classes: int, name: str) -> None:
    """Run the model on two images and on one: a last batch may be of one sample."""
    for images in (x, x[:1]):
        _probe_batch(module, images, num_classes, name)


def _probe_batch(module: nn.Module, x: Tensor, num_classes: int, name: str) -> None:
    image = "x".join(str(n) for n in x.shape[1:])
    try:
        logits = module(x)
    except Exception as error:
        raise ModelError(f"model '{name}' fails on images of {image} (channels x H x W): {_reason(error)}") from error
    got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if got != (len(x), num_classes):
        mode = "training" if module.training else "evaluation"
        raise ModelError(
            f"model '{name}' on {len(x)} images of {image} in {mode} mode: logits of shape {(len(x), num_classes)} "
            f"(images, classes) expected, got {got}."
        )
    if not bool(logits.isfinite().all()):
        raise ModelError(f"model '{name}' gives logits that are not finite on images of {image}.")
    if bool((logits >= 0).all()) and torch.allclose(logits.sum(-1), torch.ones(len(x))):
        raise ModelError(
            f"model '{name}' gives probabilities, and every loss here wants logits: leave its softmax out."
        )


def _refuse_running_statistics(module: nn.Module, name: str) -> None:
    for layer_name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            raise ModelError(
                f"model '{name}': layer '{layer_name}' is {type(layer).__name__}, which cannot be trained federated. "
                "Its running statistics are not parameters: they are not averaged, they tell of a client's data, they "
                "are wrong for everybody else when clients are skewed, and many clients' cannot be kept side by side. "
                "Use nn.GroupNorm."
            )


def _refuse_changing_buffers(module: nn.Module, x: Tensor, num_classes: int, name: str) -> None:
    before = {key: (buffer, buffer._version) for key, buffer in module.named_buffers()}
    _probe(module.train(), x, num_classes, name)
    for key, buffer in module.named_buffers():
        if key not in before or before[key][0] is not buffer or before[key][1] != buffer._version:
            raise ModelError(
                f"model '{name}': its forward changes the buffer '{key}'. Buffers are constants here: what changes in "
                "training must be a parameter, or it would be neither sent nor averaged."
            )


def _find_head(module: nn.Module, num_classes: int, named: str | None, x: Tensor, name: str) -> str | None:
    """The name of the layer that makes logits of features, or None."""
    if named is None and isinstance(getattr(module, "head_name", None), str):
        named = str(module.head_name)
    linears = {key: layer.out_features for key, layer in module.named_modules() if isinstance(layer, nn.Linear) and key}
    if named is None:
        last = next((key for key, out in reversed(linears.items()) if out == num_classes), None)
        return last if last is not None and _why_not_head(module, last, num_classes, x) is None else None
    if named not in linears:
        raise ModelError(f"model.head of model '{name}': " + unknown("nn.Linear", named, linears))
    reason = _why_not_head(module, named, num_classes, x)
    if reason is not None:
        raise ModelError(f"model.head = '{named}' is not the head of model '{name}': {reason}.")
    return named


def _why_not_head(module: nn.Module, head: str, num_classes: int, x: Tensor) -> str | None:
    linear, body = _linear(module, head), _without(module, head)
    if linear.out_features != num_classes:
        return f"it has {linear.out_features} outputs for {num_classes} classes"
    names = _head_names(linear, head)
    trainable = {key: p for key, p in module.named_parameters() if p.requires_grad}
    if not trainable.keys() >= set(names):
        return "its weight and bias are not trainable parameters of its own"
    if {*names, *(key for key, _ in body.named_parameters())} != {key for key, _ in module.named_parameters()}:
        return "it shares parameters with another layer"
    if is_watched(linear):
        return "it has hooks"
    # Random weights: under those of a head that starts at zero every split would look right.
    weights = {key: _noise(*trainable[key].shape) for key in names}
    for training in (False, True):  # dropout behind it would act on the features instead
        try:
            f = outputs(body.train(training), {}, x)
            parts, whole = F.linear(f, *weights.values()), outputs(module.train(training), weights, x)
        except Exception as error:
            return f"the model does not run without it: {_reason(error)}"
        tolerance = 1e-5 * float(whole.abs().max())
        if f.shape != (len(x), linear.in_features) or not torch.allclose(parts, whole, rtol=1e-4, atol=tolerance):
            return "the forward does not end in it, with features of shape (images, D) as its input"
    return None


def _description(module: nn.Module) -> str:
    shapes = [f"{name} {list(p.shape)}" for name, p in module.named_parameters()]
    kinds = {kind for layer in module.modules() for kind in type(layer).__mro__}
    own = {package for kind in kinds if (package := package_of(kind))}
    return "\n".join([*shapes, code_mark(module, own, drawn=True)])


def _linear(module: nn.Module, name: str) -> nn.Linear:
    layer = module.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


def _head_names(linear: nn.Linear, head: str) -> tuple[str, ...]:
    return (f"{head}.weight",) if linear.bias is None else (f"{head}.weight", f"{head}.bias")


def _without(module: nn.Module, head: str) -> nn.Module:
    """A copy in which the head lets the features through."""
    module = copy.deepcopy(module)
    parent, _, leaf = head.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
    return module


def _guard_group_norms(module: nn.Module) -> None:
    """Torch 2.13 on a CPU ends the process in the backward of a GroupNorm whose input is channels-last, as images are,
    and needs no gradient: that of the first layer, or one behind frozen layers."""
    for layer in module.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.register_forward_pre_hook(_constants_laid_out, with_kwargs=True)


def _constants_laid_out(
    norm: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in norm.parameters()):
        return None
    return tuple(map(_laid_out, args)), {name: _laid_out(value) for name, value in named.items()}


def _laid_out(value: Any) -> Any:
    """In rows, if it is a tensor that needs no gradient."""
    if not isinstance(value, Tensor) or value.requires_grad:
        return value
    # What has one channel counts as contiguous however it lies, and `contiguous` would leave it so.
    return value.clone(memory_format=torch.contiguous_format)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
