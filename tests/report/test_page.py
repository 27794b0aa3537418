"""The page in a real Chromium: it draws, filters, sorts, asks nobody for anything and can be read on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedacd.report import collect, write
from fedacd.report.page import render
from fedacd.tables.summaries import write_summaries
from tests.report.browser import Browser, find_chromium
from tests.report.made import flat, make_many, make_run, make_summary

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")

SECTIONS = {
    "curve-plots": 4, "difference-plots": 4, "class-plots": 4, "risk-plots": 4,
    "partition-plots": 1, "matrix-plots": 4, "weight-plots": 1,
}  # fmt: skip
"""Plots of four problems with three methods."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    assert program
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    make_many(root / "runs", seeds=2)
    write([root / "runs"], root / "page.html")
    return root / "page.html"


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.dark(False)
    browser.size(1280, 900)
    browser.open(page)
    yield browser
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def rows(browser: Browser, table: str, column: int) -> list[str]:
    cells = browser.js(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.children[{column}].textContent)"
    )
    return list(cells)


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


def test_every_plot_draws(opened: Browser) -> None:
    assert {place: drawn(opened, place) for place in SECTIONS} == SECTIONS
    assert opened.js("document.querySelectorAll('.absent:not([hidden])').length") == 0


def test_the_page_says_who_is_better(opened: Browser) -> None:
    assert opened.js("document.title") == "FedACD, FedAvg and FedLC on CIFAR-10 and CIFAR-100"
    assert opened.js("document.querySelectorAll('h1').length") == 1
    assert len(opened.js("[...document.querySelectorAll('.card')].map(c => c.textContent)")) == 4


def card(browser: Browser, part: str) -> list[str]:
    """The texts of the first card; a space that does not break is a space."""
    texts = browser.js(f"[...document.querySelector('.card').querySelectorAll('{part}')].map(p => p.textContent)")
    return [text.replace("\u00a0", " ") for text in texts]


HARD = [("fedacd", 0, 0.7), ("fedacd", 1, 0.5)]
"""Seed 1, which others have not been run with, is a hard one."""


def test_the_card_ranks_as_the_terminal_does(browser: Browser, tmp_path: Path) -> None:
    for method, seed, level in [*HARD, ("fedlc", 0, 0.65), ("fedavg", 0, 0.62), ("fedavg", 1, 0.3)]:
        make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, level=level)
    (line,) = write([tmp_path], tmp_path / "page.html")["headlines"]
    browser.open(tmp_path / "page.html")
    assert line.startswith("FedACD is ahead of FedLC on digits at beta 0.1 by ")
    assert [text.split(" ")[0] for text in card(browser, ".rival")] == ["FedACD", "FedLC"]
    assert card(browser, "p:not([class])")[0].startswith("FedACD is ahead of FedLC by ")
    toggle(browser, "method", "FedACD")
    assert [text.split(" ")[0] for text in card(browser, ".rival")] == ["FedLC", "FedAvg"]


def test_a_card_names_no_winner_where_nothing_is_sure(browser: Browser, tmp_path: Path) -> None:
    for method, seed, level in [("fedacd", 0, 0.5), ("fedacd", 1, 0.52), ("fedlc", 0, 0.65)]:
        make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, change=flat(level))
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert card(browser, ".big") == ["No clear winner"]
    assert card(browser, ".rival") == ["FedLC 65.0 % (one seed)", "FedACD 51.0 ± 1.4 % (2 seeds)"]


def test_a_card_names_a_winner_where_one_is_likely(browser: Browser, tmp_path: Path) -> None:
    for seed, levels in enumerate([(0.51, 0.501), (0.52, 0.5101)]):
        for method, level in zip(("fedacd", "fedavg"), levels, strict=True):
            make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, change=flat(level))
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert card(browser, ".big") == ["FedACD 51.5 ± 0.7 % (2 seeds)"]
    assert card(browser, ".rival") == []
    assert card(browser, ".badge") == ["likely"]


def test_a_card_says_that_no_seed_is_in_common(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", method="fedavg", seed=1)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert card(browser, "p")[-1] == "No seed in common: they cannot be compared in pairs."


def test_a_percentage_does_not_break(opened: Browser) -> None:
    assert "\u00a0%" in opened.js("document.querySelector('.card small').textContent")
    assert " %" not in opened.js("document.getElementById('headlines').textContent")


def test_filters_act_on_every_section(opened: Browser) -> None:
    toggle(opened, "dataset", "CIFAR-10")
    toggle(opened, "skew", "beta 0.05")
    toggle(opened, "method", "FedLC")
    left = dict.fromkeys(SECTIONS, 1) | {"matrix-plots": 3}
    assert {place: drawn(opened, place) for place in SECTIONS} == left
    assert rows(opened, "table-all", 0) == ["FedACD", "FedAvg"]
    assert set(rows(opened, "table-runs", 0)) == {"FedACD", "FedAvg"}
    assert rows(opened, "table-differences", 0) == ["FedACD"]
    assert len(rows(opened, "table-cost", 0)) == 2
    assert opened.js("document.querySelectorAll('.card').length") == 1
    options = "[...document.querySelectorAll('#weight-pick option')].map(o => o.textContent)"
    assert opened.js(options) == ["FedACD, seed 0", "FedAvg, seed 0", "FedACD, seed 1", "FedAvg, seed 1"]
    toggle(opened, "method", "FedLC")
    assert len(rows(opened, "table-all", 0)) == 3


def test_filters_that_leave_nothing_say_so(opened: Browser) -> None:
    toggle(opened, "dataset", "CIFAR-10")
    toggle(opened, "dataset", "CIFAR-100")
    assert opened.js("document.getElementById('nothing').hidden") is False
    assert opened.js("document.querySelectorAll('.plot').length") == 0


def test_tables_sort_by_their_headings(opened: Browser) -> None:
    click = "document.querySelectorAll('#table-all thead button')[4].click()"
    heading = "document.querySelectorAll('#table-all thead th')[4]"
    assert opened.js(f"{heading}.textContent") == "Accuracy %"
    opened.js(click)
    down = [float(text.split(" ")[0]) for text in rows(opened, "table-all", 4)]
    assert down == sorted(down, reverse=True)
    assert opened.js(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert opened.js(f"document.activeElement === {heading}.firstChild")
    opened.js(click)
    assert [float(text.split(" ")[0]) for text in rows(opened, "table-all", 4)] == down[::-1]


def test_controls_change_their_plots(opened: Browser) -> None:
    first = "document.querySelector('#{} .plot').layout.{}axis.title.text"
    choose(opened, "curve-x", "megabytes")
    assert opened.js(first.format("curve-plots", "x")) == "megabytes, all clients"
    choose(opened, "risk-metric", "kl_test")
    assert opened.js(first.format("risk-plots", "y")) == "KL(P‖Q), test set"
    choose(opened, "difference-base", "all")
    assert len(rows(opened, "table-differences", 0)) == 12
    choose(opened, "cost-target", "at:30")
    assert set(rows(opened, "table-cost", 3)) == {"30.0"}
    z = "JSON.stringify(document.querySelectorAll('#matrix-plots .plot')[1].data[0].z)"
    before = opened.js(z)
    choose(opened, "matrix-kind", "test")
    assert opened.js(z) != before


def test_very_many_values_draw(browser: Browser, tmp_path: Path) -> None:
    data = collect([make_run(tmp_path / "a")])
    many = [[i] * 400 for i in range(400)]
    data["shares"][0]["shares"] = data["partitions"][0]["counts"] = many
    (tmp_path / "page.html").write_text(render(data))
    browser.open(tmp_path / "page.html")
    label = "document.querySelector('#{} .plot')?.getAttribute('aria-label')"
    assert browser.js(label.format("weight-plots")) == "shares from 0.000 to 399.000 of an equal one"
    assert browser.js(label.format("partition-plots")) == "400 clients hold 0 to 400 of 400 classes"
    assert browser.complaints == []


@pytest.mark.parametrize("width", [320, 390, 768, 1024])
def test_no_width_scrolls_sideways(opened: Browser, page: Path, width: int) -> None:
    opened.size(width, 844, touch=width < 800)
    opened.open(page)
    assert opened.js("document.documentElement.scrollWidth") <= width
    assert {place: drawn(opened, place) for place in SECTIONS} == SECTIONS


def test_dark_mode_reaches_the_plots(opened: Browser) -> None:
    ink = "document.querySelector('.plot').layout.font.color"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = opened.js(ink), opened.js(paper)
    opened.dark(True)
    opened.until(lambda: opened.js(ink) != light[0], "the plots stay light")
    opened.ready()
    assert (opened.js(ink), opened.js(paper)) == ("#e8ebef", "rgb(18, 22, 27)")


def test_the_keyboard_reaches_everything(opened: Browser) -> None:
    opened.press("Tab", 9)
    assert opened.js("document.activeElement.className") == "skip"
    assert opened.js("document.activeElement.getBoundingClientRect().left") >= 0
    seen = set()
    for _ in range(120):
        opened.press("Tab", 9)
        seen.add(opened.js("(document.activeElement.closest('section, form, nav') || {}).id || ''"))
    assert {"filters", "curves", "table", "differences", "classes", "risk", "partition", "matrices", "cost"} <= seen
    unnamed = "[...document.querySelectorAll('input, select')].filter(e => e.labels.length === 0).length"
    assert opened.js(unnamed) == 0


def test_names_are_text(browser: Browser, tmp_path: Path) -> None:
    nasty = '<img src=x onerror="document.title=1">&<b>%{x}'
    for seed in range(2):
        for method in ("fedavg", nasty):
            folder = tmp_path / f"run {len(method)}{seed}"
            make_run(folder, method=method, seed=seed, data__name=nasty, train__mixup=False)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.js("document.querySelectorAll('main img, main b, svg a').length") == 0
    assert nasty in browser.js("document.querySelector('.card h3').textContent")
    assert nasty in browser.js("document.querySelector('#class-plots .ytick text, #class-plots').textContent")
    assert browser.complaints == []


def test_unfinished_and_bare_runs(browser: Browser, tmp_path: Path) -> None:
    def bare(record: dict[str, object]) -> dict[str, object]:
        return {"round": record["round"], "accuracy": record["accuracy"], "risk": None}

    make_run(tmp_path / "a", done=5, matrices=False, change=bare)
    make_run(tmp_path / "b", method="fedavg", done=0, matrices=False)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.js("document.querySelector('#table-all small.mark').textContent") == "unfinished: 5 of 12 rounds"
    assert browser.js("[...document.querySelectorAll('.absent:not([hidden])')].length") >= 4
    assert drawn(browser, "curve-plots") == 1
    assert browser.complaints == []


def test_summaries_alone(browser: Browser, tmp_path: Path) -> None:
    write_summaries([make_many(tmp_path / "runs", seeds=2, rounds=30)], tmp_path / "results")
    write([tmp_path / "results"], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    plots = dict.fromkeys(SECTIONS, 0) | dict.fromkeys(
        ["curve-plots", "difference-plots", "risk-plots", "class-plots"], 4
    )
    assert {place: drawn(browser, place) for place in SECTIONS} == plots
    bare = "[...document.querySelectorAll('.absent:not([hidden])')].map(p => p.closest('section').id)"
    assert browser.js(bare) == ["partition", "matrices", "weights"]
    empty = "[...document.querySelectorAll('select')].filter(s => s.checkVisibility() && !s.options.length).length"
    assert browser.js(empty) == 0
    assert browser.js("document.querySelector('#curve-plots .plot').data.at(-1).x") == [10, 20, 30]
    for x in ("seconds", "megabytes"):
        choose(browser, "curve-x", x)
        assert browser.js(bare)[0] == "curves"
        assert drawn(browser, "curve-plots") == 0
    choose(browser, "curve-x", "round")
    choose(browser, "risk-metric", "train_loss")
    assert "risk" in browser.js(bare)
    assert {*rows(browser, "table-cost", 6)} == {*rows(browser, "table-cost", 7)} == {"–"}
    assert set(rows(browser, "table-cost", 4)) == {"2 of 2"}
    assert rows(browser, "table-runs", 10)[0] == "cifar10-0.05-fedacd-0"
    assert "24 of 24 runs are summaries" in browser.js("document.querySelector('#notes li').textContent")
    assert browser.complaints == []


def test_a_summary_has_no_line_over_seconds(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=30)
    make_summary(tmp_path / "b", method="fedavg", rounds=30)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    legend = "[...document.querySelectorAll('#curve-plots .legend span')].map(s => s.textContent)"
    assert browser.js(legend) == ["FedACD", "FedAvg"]
    choose(browser, "curve-x", "seconds")
    assert browser.js(legend) == ["FedACD"]
    assert browser.js("document.querySelector('#curve-plots .plot').data.length") == 1
    assert browser.complaints == []
