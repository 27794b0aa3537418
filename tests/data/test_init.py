import subprocess
import sys

from fedacd import data


def test_all_is_there_and_sorted() -> None:
    assert all(hasattr(data, name) for name in data.__all__)
    assert len(set(data.__all__)) == len(data.__all__)


def test_import_needs_no_optional_package() -> None:
    program = (
        "import sys\nfor name in ('PIL', 'sklearn', 'rich', 'typer'): sys.modules[name] = None\nimport fedacd.data\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
