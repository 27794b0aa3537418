"""What stands behind a name of one's own, `package.module:attribute`, and a mark of what it does."""

import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedacd.errors import FedacdError


def imported(name: str, what: str, error: type[FedacdError]) -> Any:
    """Import it; the current folder is searched first. `what` it is, in messages."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # and there it stays: worker processes must find the module again
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as reason:
        mend = f" Write {Path(module_name).stem}:{attribute}." if module_name.endswith(".py") else ""
        text = f"{what} '{name}': cannot import '{module_name}': {type(reason).__name__}: {reason}.{mend}"
        raise error(text) from reason
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise error(
                f"{what} '{name}': '{module_name}' has no '{attribute}'. In Python the {what} itself can be given: "
                f"{what}=..."
            )
        found = getattr(found, part)
    return found


def code_mark(value: object, packages: Iterable[str], *, configured: type | None = None, drawn: bool = False) -> str:
    """16 hex digits that change with what a class, function or model does, and the Python they hold for.

    It is of the code that runs, not of a file. It follows what the code refers to, but not into fedacd, torch and
    Python's own modules, nor into installed packages other than `packages`; of those the name counts. Line numbers,
    comments, names of files and the annotations of types do not count. Left out are the fields of a `configured` class,
    and the values of tensors where they are `drawn`.
    """
    text = _Reader(frozenset(packages), configured, drawn).read(value)
    return f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}-py{_PYTHON}"


def of_another_python(there: object) -> str | None:
    """The Python that a recorded mark holds for, where it is another one: then nothing can be compared."""
    python = str(there).partition("-py")[2]
    return python if python not in ("", _PYTHON) else None


def package_of(kind: type) -> str | None:
    """The package of a class that is not of fedacd, torch or Python."""
    package = kind.__module__.partition(".")[0]
    return None if package in _OTHERS else package


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OTHERS = {"fedacd", "torch", *sys.stdlib_module_names}
_PLAIN = (NoneType, bool, int, float, complex, str, bytes, EllipsisType)
_WRAPPERS = (
    *(property, classmethod, staticmethod, MethodType, functools._lru_cache_wrapper),
    *(functools.partial, functools.partialmethod, functools.cached_property),
)
_WRAPPED = ("fget", "fset", "fdel", "func", "args", "keywords", "__func__", "__self__", "__wrapped__")
_OF_ANY_MODULE = vars(nn.Module()).keys()


class _Reader:
    """Writes down what an object does, the same in every process. What is met gets a number, and its turn."""

    def __init__(self, packages: frozenset[str], configured: type | None, drawn: bool) -> None:
        self._packages, self._configured, self._drawn = packages, configured, drawn
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []

    def read(self, value: object) -> str:
        first = self._name(value)
        return "\n".join([first, *(self._inside(one) for one in self._met)])  # which grows meanwhile

    def _name(self, value: Any) -> str:
        """A plain value itself, the name of what is not followed, the number of everything else."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, tuple):
            return f"{type(value).__name__} ({', '.join(map(self._name, value))})"
        if isinstance(value, frozenset):
            return f"frozenset ({', '.join(map(self._name, sorted(value, key=_shown)))})"
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type) and not self._own(value.__module__):
            return f"{value.__module__}:{value.__qualname__}"
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._met)
            self._met.append(value)  # and so kept: its id stays its own
        return f"#{self._numbers[id(value)]}"

    def _inside(self, value: Any) -> str:
        if isinstance(value, type):
            parts = self._class(value)
        elif isinstance(value, FunctionType):
            parts = self._function(value)
        elif isinstance(value, _WRAPPERS):
            parts = {key: getattr(value, key) for key in _WRAPPED if hasattr(value, key)}
        elif isinstance(value, nn.Module):
            parts = self._layers(value)
        elif isinstance(value, Tensor | np.ndarray):
            parts = self._array(value)
        elif isinstance(value, dict):
            parts = {"keys": tuple(value), "values": tuple(value.values())}
        elif isinstance(value, list | set):
            parts = {"items": tuple(sorted(value, key=_shown) if isinstance(value, set) else value)}
        elif self._own(type(value).__module__):
            parts = {"class": type(value), **getattr(value, "__dict__", {})}
        else:
            parts = {"shown": _shown(value)}
        return f"{type(value).__name__}: " + "; ".join(f"{key} = {self._name(part)}" for key, part in parts.items())

    def _class(self, kind: type) -> dict[str, Any]:
        configured = self._configured is not None and issubclass(kind, self._configured)
        fields = {field.name for field in dataclasses.fields(kind)} if configured else set()  # without ClassVars
        parts: dict[str, Any] = {"bases": kind.__bases__}
        for name, value in sorted(vars(kind).items()):
            works = isinstance(value, (FunctionType, *_WRAPPERS)) and not name.startswith("__annotate")
            if configured and (name in fields or _is_generated(value)):
                continue
            if works or not name.startswith("__"):
                parts[name] = value
        return parts

    def _function(self, function: FunctionType) -> dict[str, Any]:
        module, code = str(function.__globals__.get("__name__")), function.__code__
        parts: dict[str, Any] = {}
        if hasattr(function, "__wrapped__"):
            parts["wrapped"] = function.__wrapped__
        if not self._own(module):
            return parts | {"name": f"{module}:{code.co_qualname}"}
        parts |= {"code": code, "defaults": function.__defaults__, "by_name": function.__kwdefaults__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing in it yet
                parts[f"cell {name}"] = cell.cell_contents
        loaded, named = _names(code)
        return parts | self._referred(loaded, named, function.__globals__, "global")

    def _referred(self, names: set[str], named: set[str], space: dict[str, Any], where: str) -> dict[str, Any]:
        """What the names stand for; of a module that is followed, what is taken of it."""
        parts: dict[str, Any] = {}
        for name in sorted(names & space.keys()):
            value, here = space[name], f"{where} {name}"
            if not isinstance(value, ModuleType):
                parts[here] = value
            elif self._own(value.__name__) and where.count(" ") < 4:  # modules may hold one another
                parts |= self._referred(named, named, vars(value), here)
        return parts

    def _layers(self, module: nn.Module) -> dict[str, Any]:
        parts: dict[str, Any] = {"shown": _shown(module)}
        for name, layer in module.named_modules():
            parts[f"layer {name}"] = type(layer)
            own = self._own(type(layer).__module__)
            for key, value in vars(layer).items():
                if key not in _OF_ANY_MODULE and (own or key[0] != "_"):
                    parts[f"{name}.{key}"] = value
        if not self._drawn:
            parts |= {f"tensor {name}": value for name, value in module.state_dict().items() if not is_lazy(value)}
        return parts

    def _array(self, array: Any) -> dict[str, Any]:
        parts: dict[str, Any] = {"dtype": str(array.dtype), "shape": tuple(array.shape)}
        if self._drawn:
            return parts
        if isinstance(array, Tensor):
            array = array.detach().cpu().to_dense().contiguous().reshape(-1).view(torch.uint8).numpy()
        hashable = not array.dtype.hasobject
        return parts | {"values": hashlib.blake2b(array.tobytes()).digest() if hashable else array.tolist()}

    def _code(self, code: CodeType) -> str:
        return self._name((
            *(code.co_code, code.co_exceptiontable, code.co_flags, code.co_argcount, code.co_posonlyargcount),
            *(code.co_kwonlyargcount, code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars),
            code.co_consts,
        ))  # fmt: skip

    def _own(self, module: str) -> bool:
        package = module.partition(".")[0]
        return package not in _OTHERS and (package in self._packages or not _is_installed(package))


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Which globals a function and those inside it load, and all names in them."""
    steps = dis.get_instructions(code)
    loaded = {step.argval for step in steps if step.opname.startswith("LOAD") and re.search("GLOBAL|NAME", step.opname)}
    named = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            loaded, named = (one | other for one, other in zip((loaded, named), _names(const), strict=True))
    return loaded, named


def _is_generated(value: object) -> bool:
    """Whether a function is one that dataclass has written; its repr is inside another."""
    code = getattr(value, "__code__", None)
    return code is not None and ("__create_fn__" in code.co_qualname or "recursive_repr" in code.co_qualname)


def _is_installed(package: str) -> bool:
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _shown(value: object) -> str:
    """Its repr without addresses."""
    try:
        return re.sub(r"\b0x[0-9a-fA-F]+", "", repr(value))
    except Exception:  # whatever it is, its class remains
        return type(value).__qualname__
