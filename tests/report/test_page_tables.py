"""The tables of the page: they sort, fit, and mark as best what is."""

import csv
import functools
import io
from pathlib import Path
from typing import Any

import pytest

from fedacd.report import collect, write
from fedacd.report.page import render
from tests.report.browser import Browser
from tests.report.made import flat, make_run, make_summary, ramp
from tests.report.on_page import best, choose, rows, saved, toggle


def test_tables_sort_by_their_headings(opened: Browser) -> None:
    heading = "[...document.querySelectorAll('#table-all thead th')].find(h => h.textContent === 'Accuracy %')"
    opened.js(f"{heading}.firstChild.click()")
    down = [float(text) for text in rows(opened, "table-all", "Accuracy %")]
    assert down == sorted(down, reverse=True)
    assert opened.js(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert opened.js(f"document.activeElement === {heading}.firstChild")
    opened.js(f"{heading}.firstChild.click()")
    assert [float(text) for text in rows(opened, "table-all", "Accuracy %")] == down[::-1]


def test_tables_sort_wherever_they_fold(opened: Browser) -> None:
    opened.js("document.querySelector('#table-cost thead button').click()")
    folded = "document.querySelectorAll('#table-cost .fold').length"
    assert opened.js(folded) == 0
    opened.size(390, 844)
    opened.until(lambda: opened.js(folded) == 12, "the table does not fold")
    opened.js("document.querySelectorAll('#table-cost thead button')[1].click()")
    assert opened.js("document.querySelectorAll('#table-cost th[aria-sort=descending]').length") == 1
    opened.size(1280, 900)
    opened.until(lambda: opened.js(folded) == 0, "the table stays folded")
    title = "document.querySelector('#table-cost th[aria-sort=descending]').textContent"
    assert opened.js(title) == "Reached by"


def test_a_table_is_saved_as_it_is_shown(opened: Browser, tmp_path: Path) -> None:
    """Filtered and sorted as it is, whole where it folds."""
    toggle(opened, "method", "FedLC")
    heading = "[...document.querySelectorAll('#table-all thead th')].find(h => h.textContent === 'Accuracy %')"
    opened.js(f"{heading}.firstChild.click()")
    shown = [rows(opened, "table-all", title) for title in ("Method", "Accuracy %")]
    file = saved(opened, "table-all", "CSV", tmp_path)
    records = list(csv.DictReader(io.StringIO(file.read_text())))
    toggle(opened, "method", "FedLC")
    assert file.name == "all-numbers.csv"
    assert len(records) == 8
    assert [record["Method"] for record in records] == shown[0]
    assert [f"{float(record['Accuracy %']):.2f}" for record in records] == shown[1]
    assert all(float(record["Accuracy % sd"]) > 0 for record in records)
    assert {(record["Data set"], record["Skew"]) for record in records} == {
        (name, f"beta {beta}") for name in ("CIFAR-10", "CIFAR-100") for beta in (0.05, 0.1)
    }
    assert {record["Seeds"] for record in records} == {"2"}


def test_an_interval_is_saved_as_two_numbers_and_names_are_quoted(browser: Browser, tmp_path: Path) -> None:
    nasty = 'a "b", c'
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", data__name=nasty, seed=seed, change=flat(0.5 + seed / 100))
        make_run(tmp_path / f"b{seed}", data__name=nasty, seed=seed, method="fedavg", change=flat(0.5 - seed / 100))
    make_run(tmp_path / "c", method="fedavg")
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    file = saved(browser, "table-differences", "CSV", tmp_path)
    (record,) = csv.DictReader(io.StringIO(file.read_text()))
    assert [record["Data set"], record["Method"], record["minus"]] == [nasty, "FedACD", "FedAvg"]
    assert [float(record[key]) for key in ("Difference", "95 % from", "95 % to")] == [
        1,
        -11.7062,
        13.7062,
    ]  # 12.7062 * 1


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("table-all", "Accuracy %"),
        ("table-differences", "Difference"),
        ("table-differences", "Verdict"),
        ("table-cost", "Reached by"),
        ("table-cost", "Rounds"),
    ],
)
def test_on_a_phone_the_answer_is_in_view(table: str, column: str, opened: Browser, page: Path) -> None:
    opened.size(390, 844, touch=True)
    opened.open(page)
    cell = f"""(() => {{
      const titles = [...document.querySelectorAll('#{table} thead th')].map(h => h.textContent);
      const sheet = document.querySelector('#{table} .sheet').getBoundingClientRect();
      const cells = document.querySelector('#{table} tbody tr').children;
      const [name, mine] = [cells[0], cells[titles.indexOf('{column}')]].map(c => c.getBoundingClientRect());
      return [sheet.right - mine.right, mine.left - name.right];
    }})()"""
    assert min(opened.js(cell)) >= 0
    beneath = opened.js(f"document.querySelector('#{table} .fold').textContent")
    assert "CIFAR-10, beta 0.05" in beneath


def test_on_a_large_screen_every_number_is_in_view(opened: Browser, page: Path) -> None:
    opened.size(1400, 900)
    opened.open(page)
    over = "(s => s.scrollWidth - s.clientWidth)(document.querySelector('#table-{} .sheet'))"
    assert [opened.js(over.format(name)) for name in ("all", "differences", "cost")] == [0, 0, 0]
    assert rows(opened, "table-all", "MB / round")[0] == "2.00"


def test_columns_of_nothing_are_left_out(browser: Browser, tmp_path: Path) -> None:
    make_summary(tmp_path / "a")
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    titles = browser.js("[...document.querySelectorAll('#table-all thead th')].map(h => h.textContent)")
    assert "s / round" in titles
    assert "MB / round" not in titles


def test_a_number_of_one_seed_says_so(browser: Browser, tmp_path: Path) -> None:
    for method, seed, level in [("fedacd", 0, 0.5), ("fedacd", 1, 0.52), ("fedlc", 0, 0.65)]:
        make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, change=flat(level))
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    cells = "[...document.querySelectorAll('#table-all tbody tr')].map(r => r.children[2].textContent)"
    assert browser.js(cells) == ["51.00 ± 1.41", "65.00 n = 1"]


def late(record: dict[str, Any], at: int) -> dict[str, Any]:
    """50 % from this round on, 10 % before."""
    return record | {"accuracy": 0.5 if record["round"] >= at else 0.1}


def reach(root: Path, **at: list[int]) -> None:
    for method, starts in at.items():
        for seed, start in enumerate(starts):
            change = functools.partial(late, at=start)
            make_run(root / f"{method}{seed}", method=method, seed=seed, change=change)


def cheapest(browser: Browser, root: Path) -> set[str]:
    """Whose cost of 50 % is bold."""
    write([root], root / "page.html")
    browser.open(root / "page.html")
    choose(browser, "cost-target", "at:50")
    return {name for name, _ in best(browser, "table-cost")}


def test_a_cost_is_best_only_if_all_seeds_pay_it(browser: Browser, tmp_path: Path) -> None:
    reach(tmp_path, fedavg=[2, 99, 99], fedlc=[4, 4, 4], fedacd=[5, 5, 5])
    assert cheapest(browser, tmp_path) == {"FedLC"}
    assert rows(browser, "table-cost", "Reached by") == ["3 of 3", "1 of 3", "3 of 3"]


def test_the_only_one_that_all_seeds_bring_there_is_best(browser: Browser, tmp_path: Path) -> None:
    reach(tmp_path, fedavg=[2, 99], fedlc=[4, 4])
    assert cheapest(browser, tmp_path) == {"FedLC"}


def test_exact_and_coarse_costs_do_not_compete(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=30, change=ramp)
    make_summary(tmp_path / "b", method="fedavg", rounds=30, change=ramp)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    choose(browser, "cost-target", "at:10")
    assert rows(browser, "table-cost", "Rounds") == ["10.0", "≤ 10.0"]
    assert best(browser, "table-cost") == []


def test_coarse_costs_compete_among_themselves(browser: Browser, tmp_path: Path) -> None:
    for method, at in (("fedacd", 15), ("fedavg", 25)):
        make_summary(tmp_path / method, method=method, rounds=30, change=functools.partial(late, at=at))
    assert cheapest(browser, tmp_path) == {"FedACD"}
    assert rows(browser, "table-cost", "Rounds") == ["≤ 20.0", "≤ 30.0"]


@pytest.mark.parametrize(("p", "shown"), [(0.0002, "<0.001"), (0.04996, "0.04996"), (0.0501, "0.050"), (0.25, "0.250")])
def test_p_says_on_which_side_of_the_level_it_lies(p: float, shown: str, browser: Browser, tmp_path: Path) -> None:
    for method, seed in (("fedacd", 0), ("fedacd", 1), ("fedlc", 0), ("fedlc", 1)):
        make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, change=flat(0.5))
    data = collect([tmp_path])
    data["pairs"][0]["p"] = p
    (tmp_path / "page.html").write_text(render(data))
    browser.open(tmp_path / "page.html")
    assert rows(browser, "table-differences", "p") == [shown]
