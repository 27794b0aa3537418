"""The code reads in one direction, and the core needs torch, numpy and safetensors alone."""

import ast
import subprocess
import sys
from pathlib import Path

import fedacd

SOURCE = Path(fedacd.__file__).parent

# A module imports only from those on its left.
ORDER = ["errors", "lookup", "toml", "settings", "config", "files", "data", "partition", "models", "methods", "metrics",
         "environment", "checkpoint", "records", "engine", "inference", "training", "api", "display", "cli_exits",
         "track", "bench", "tables", "report", "flower", "cli_data", "cli"]  # fmt: skip


def imported(path: Path) -> set[str]:
    """The parts of fedacd that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedacd":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedacd.")}
    return found & set(ORDER)


def test_the_design_page_has_this_order() -> None:
    page = (SOURCE.parents[1] / "docs" / "explanation" / "design.md").read_text()
    assert " -> ".join(ORDER) in " ".join(page.split())


def test_imports_point_to_the_left() -> None:
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        assert part in ORDER, f"{part} has no place in the order"
        for other in imported(path):
            assert ORDER.index(other) <= ORDER.index(part), f"{path.name} imports {other}"


def test_the_core_needs_torch_numpy_and_safetensors_alone() -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['PIL', 'sklearn', 'typer', 'rich', 'scipy']));"
        "import fedacd; import fedacd.engine.rounds"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_files_stay_short() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 320, f"{path.name} is too long to read in one go"
