"""The page in a real Chromium: it draws, filters, sorts, asks nobody for anything and can be read on a phone."""

from pathlib import Path

import pytest

from fedacd.report import collect, write
from fedacd.report.page import render
from fedacd.tables.summaries import write_summaries
from tests.report.browser import Browser
from tests.report.made import make_many, make_run, make_summary
from tests.report.on_page import choose, drawn, rows, toggle, unrecorded

SECTIONS = {
    "curve-plots": 4, "difference-plots": 4, "class-plots": 4, "risk-plots": 4,
    "partition-plots": 1, "matrix-plots": 4, "weight-plots": 1,
}  # fmt: skip
"""Plots of four problems with three methods."""


def test_every_plot_draws(opened: Browser) -> None:
    assert {place: drawn(opened, place) for place in SECTIONS} == SECTIONS
    assert opened.js("document.querySelectorAll('.absent:not([hidden])').length") == 0


def test_the_page_says_who_is_better(opened: Browser) -> None:
    assert opened.js("document.title") == "FedACD, FedAvg and FedLC on CIFAR-10 and CIFAR-100"
    assert opened.js("document.querySelectorAll('h1').length") == 1
    assert len(opened.js("[...document.querySelectorAll('.card')].map(c => c.textContent)")) == 4


def test_filters_act_on_every_section(opened: Browser) -> None:
    toggle(opened, "dataset", "CIFAR-10")
    toggle(opened, "skew", "beta 0.05")
    toggle(opened, "method", "FedLC")
    left = dict.fromkeys(SECTIONS, 1) | {"matrix-plots": 3}
    assert {place: drawn(opened, place) for place in SECTIONS} == left
    assert rows(opened, "table-all", "Method") == ["FedACD", "FedAvg"]
    assert set(rows(opened, "table-runs", "Method")) == {"FedACD", "FedAvg"}
    assert rows(opened, "table-differences", "Method") == ["FedACD"]
    assert len(rows(opened, "table-cost", "Method")) == 2
    assert opened.js("document.querySelectorAll('.card').length") == 1
    options = "[...document.querySelectorAll('#weight-pick option')].map(o => o.textContent)"
    assert opened.js(options) == ["FedACD, seed 0", "FedAvg, seed 0", "FedACD, seed 1", "FedAvg, seed 1"]
    toggle(opened, "method", "FedLC")
    assert len(rows(opened, "table-all", "Method")) == 3


def test_filters_that_leave_nothing_say_so(opened: Browser) -> None:
    toggle(opened, "dataset", "CIFAR-10")
    toggle(opened, "dataset", "CIFAR-100")
    assert opened.js("document.getElementById('nothing').hidden") is False
    assert opened.js("document.querySelectorAll('.plot').length") == 0


def test_controls_change_their_plots(opened: Browser) -> None:
    first = "document.querySelector('#{} .plot').layout.{}axis.title.text"
    choose(opened, "curve-x", "megabytes")
    assert opened.js(first.format("curve-plots", "x")) == "megabytes, all clients"
    choose(opened, "risk-metric", "kl_test")
    assert opened.js(first.format("risk-plots", "y")) == "KL(P‖Q), test set"
    choose(opened, "difference-base", "all")
    assert len(rows(opened, "table-differences", "Method")) == 12
    choose(opened, "cost-target", "at:30")
    assert set(rows(opened, "table-cost", "Target %")) == {"30.0"}
    z = "JSON.stringify(document.querySelectorAll('#matrix-plots .plot')[1].data[0].z)"
    before = opened.js(z)
    assert opened.js("document.getElementById('matrix-kind').value") == "test"
    choose(opened, "matrix-kind", "own")
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
    assert {*rows(browser, "table-cost", "Seconds")} == {*rows(browser, "table-cost", "Megabytes")} == {"–"}
    assert set(rows(browser, "table-cost", "Reached by")) == {"2 of 2"}
    assert rows(browser, "table-runs", "Name")[0] == "cifar10-0.05-fedacd-0"
    assert "24 of 24 runs are summaries" in browser.js("document.querySelector('#notes li').textContent")
    assert browser.complaints == []


def test_a_summary_has_no_line_over_seconds(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=30)
    make_summary(tmp_path / "b", method="fedavg", rounds=30)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    legend = "[...document.querySelectorAll('#curve-plots .legend button')].map(b => b.textContent)"
    assert browser.js(legend) == ["FedACD", "FedAvg"]
    choose(browser, "curve-x", "seconds")
    assert browser.js(legend) == ["FedACD"]
    assert unrecorded(browser, "curve-plots") == ["Not recorded: FedAvg."]
    assert browser.js("document.querySelector('#curve-plots .plot').data.length") == 1
    assert browser.complaints == []
