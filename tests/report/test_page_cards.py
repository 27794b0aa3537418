"""Which method is better, as the page says it."""

from pathlib import Path

from fedacd.report import write
from tests.report.browser import Browser
from tests.report.made import flat, make_run
from tests.report.on_page import card, toggle

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
