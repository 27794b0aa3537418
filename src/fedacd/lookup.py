"""What stands behind a name of one's own, `package.module:attribute`, and its source."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

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


def source_of(kind: type) -> str:
    """A class's source; nothing where it cannot be had, as of one that was typed in at Python's prompt."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
