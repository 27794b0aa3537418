"""A Chromium for all tests of the page, and a page of four problems with three methods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedacd.report import write
from tests.report.browser import Browser, find_chromium
from tests.report.made import make_many


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.dark(False)
    chromium.size(1280, 900)
    return chromium


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    make_many(root / "runs", seeds=2)
    write([root / "runs"], root / "page.html")
    return root / "page.html"


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page)
    yield browser
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
