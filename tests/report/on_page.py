"""What the tests read from the page and do to it."""

from pathlib import Path

from tests.report.browser import Browser


def rows(browser: Browser, table: str, column: str) -> list[str]:
    """The cells of the column with this heading, less what is said beneath or beside."""
    titles = browser.js(f"[...document.querySelectorAll('#{table} thead th')].map(h => h.textContent)")
    cell = f"r.children[{titles.index(column)}].firstChild.textContent"
    return list(browser.js(f"[...document.querySelectorAll('#{table} tbody tr')].map(r => {cell})"))


def best(browser: Browser, table: str) -> list[list[str]]:
    """What is bold: the row's name, the cell's text."""
    texts = "[c.parentNode.firstChild.firstChild.textContent, c.textContent]"
    return list(browser.js(f"[...document.querySelectorAll('#{table} td.best')].map(c => {texts})"))


def toggle(browser: Browser, name: str, value: str) -> None:
    browser.js(f"document.querySelector('[data-filter={name}] input[value=\"{value}\"]').click()")
    browser.ready()


def choose(browser: Browser, box: str, value: str) -> None:
    browser.js(
        f"(() => {{ const box = document.getElementById('{box}'); box.value = '{value}';"
        " box.dispatchEvent(new Event('change')); })()"
    )
    browser.ready()


def drawn(browser: Browser, place: str) -> int:
    """How many plots of a place have something in them."""
    marks = ".scatterlayer .trace, .heatmaplayer .hm"
    count = browser.js(
        f"[...document.querySelectorAll('#{place} .plot')].filter(p => p.querySelector('{marks}')"
        " && p.getBoundingClientRect().height > 100).length"
    )
    return int(count)


def card(browser: Browser, part: str) -> list[str]:
    """The texts of the first card; a space that does not break is a space."""
    texts = browser.js(f"[...document.querySelector('.card').querySelectorAll('{part}')].map(p => p.textContent)")
    return [text.replace("\u00a0", " ") for text in texts]


def unrecorded(browser: Browser, place: str) -> list[str]:
    """What a place of plots says of runs that have nothing there."""
    return list(browser.js(f"[...document.querySelectorAll('#{place} .missing')].map(p => p.textContent)"))


def saved(browser: Browser, place: str, kind: str, folder: Path) -> Path:
    """The file that the first button of a place saves."""
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    button = f"document.querySelector('#{place} .save')"
    assert browser.js(f"{button}.getAttribute('aria-label')").startswith(f"Save as {kind}: ")
    browser.js(f"{button}.click()")
    ending = f"*.{kind.lower()}"
    browser.until(lambda: bool(list(folder.glob(ending))), "nothing is saved")
    (file,) = folder.glob(ending)
    return file
