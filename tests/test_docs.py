"""The documentation: its links resolve, its Python runs, and every public name has a place."""

import re
import sys
from pathlib import Path

import pytest

import fedacd

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
)

FENCED = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}.*\n+)+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its code, in which brackets mean something else."""
    return re.sub(r"`[^`]*`", "code", INDENTED.sub("\n", FENCED.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, punctuation dropped, spaces as hyphens, -1 for the second."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", FENCED.sub("", page.read_text()), re.MULTILINE):
        text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
        plain = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number, name = 0, plain
        while name in found:
            number, name = number + 1, f"{plain}-{number + 1}"
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Train: `a_b`, KL(P||Q)\n# Twice\n# Twice\n\n"
        "[a](#train-a_b-klpq) [b](#twice-1) [c](https://x.org/#y) [d](page.md#twice) `[e](code)`\n\n"
        "    [f](indented)\n\n"
        "```python\n# no heading\n[g](fenced)\n```\n[h\ni](gone.md) [j](#no-heading) [k](page.md#twice-2)\n"
    )
    assert broken(page) == ["gone.md", "#no-heading", "page.md#twice-2"]


def test_pages_that_the_code_names_exist() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"\bdocs/[\w/.-]*\w", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    assert [name for name in fedacd.__all__ if f"`{name}`" not in page] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    pages = {page for page in PAGES if page.parent.parent == index.parent or page.parent == index.parent}
    assert {page for page in pages if page.parent.name != "tables"} - linked == {index}


@pytest.mark.parametrize(
    "name",
    [
        "tutorial.md",
        "explanation/fedacd.md",
        "how-to/own-data.md",
        "how-to/own-method.md",
        "reference/metrics.md",
        "reference/python.md",
    ],
)
def test_python_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in one folder; two rounds are enough. What is worked out by hand is what the code prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    text = (ROOT / "docs" / name).read_text()
    if "`mine.py`" in text:
        Path("mine.py").write_text(PYTHON.findall(text)[0])
    code = "\n".join(PYTHON.findall(text)).replace('"rounds": 10', '"rounds": 2').replace("range(3)", "range(2)")
    exec(compile(code, name, "exec"), {"__name__": "example"})
    printed = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert printed
    if "By hand" in text:
        assert [number for number in printed if number not in text] == []
