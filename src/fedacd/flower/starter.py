"""`fedacd flower init DIR`: a Flower project that is ready to run, from the files in template/."""

import shutil
from pathlib import Path

from fedacd.errors import ConfigError
from fedacd.files import writing

TEMPLATE = Path(__file__).parent / "template"
_NAMES = {"gitignore": ".gitignore"}


def init(folder: Path) -> list[Path]:
    """Write the project into a new or empty folder; what was written. Nothing in it depends on where it lies."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty: choose another folder.")
    here = folder.expanduser().resolve()
    if any(letter in str(here) for letter in "\"\\'"):
        raise ConfigError(f"{here}: a path without quotes and backslashes is needed.")
    written = []
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        path = here / source.relative_to(TEMPLATE).with_name(_NAMES.get(source.name, source.name))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)
            if path.suffix == ".sh":
                path.chmod(0o755)
        written.append(path)
    return written
