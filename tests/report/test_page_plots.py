"""What the plots of the page show and say."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedacd.report import collect, write
from fedacd.report.page import render
from tests.report.browser import Browser
from tests.report.made import make_run
from tests.report.on_page import choose, drawn, saved, unrecorded

LINES = "document.querySelector('#curve-plots .plot').data.filter(t => !t.fill)"


def classless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "per_class"}


def test_classes_that_were_not_recorded_are_said(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    for number, method in enumerate(("fedavg", "fedlc")):
        make_run(tmp_path / f"b{number}", method=method, change=classless)
    make_run(tmp_path / "c", data__name="cifar10", change=classless)
    make_run(tmp_path / "d0", method="fednh")
    make_run(tmp_path / "d1", method="fednh", seed=1, change=classless)
    write([tmp_path], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert drawn(browser, "class-plots") == 1
    assert unrecorded(browser, "class-plots") == [
        "Not recorded: FedAvg, FedLC.",
        "Recorded for some of the seeds: FedNH (1 of 2).",
        "Not recorded on CIFAR-10, beta 0.1.",
    ]
    assert unrecorded(browser, "curve-plots") == []


def stressed(browser: Browser) -> list[str]:
    """The lines of the first plot that are not faint while others are."""
    found = dict(browser.js(f"Object.fromEntries({LINES}.map(t => [t.name, t.opacity ?? 1]))"))
    return [name for name, opacity in found.items() if opacity == 1 and min(found.values()) < 1]


def test_the_line_of_a_name_that_is_pointed_at_stands_out(opened: Browser) -> None:
    assert stressed(opened) == []
    place = opened.js(
        "(() => { const b = document.querySelectorAll('#curve-plots .legend button')[1]; b.scrollIntoView({behavior:"
        " 'instant', block: 'center'}); const r = b.getBoundingClientRect(); return [r.x + 5, r.y + 5]; })()"
    )
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    opened.until(lambda: stressed(opened) == ["FedAvg"], "FedAvg does not stand out")
    widths = f"{LINES}.map(t => t.line.width)"
    assert opened.js(widths) == [2, 4, 2]
    bands = "document.querySelector('#curve-plots .plot').data.filter(t => t.fill).map(t => t.line.width)"
    assert opened.js(bands) == [0, 0, 0]
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=5)
    opened.until(lambda: stressed(opened) == [], "FedAvg still stands out")
    assert opened.js(widths) == [2, 2, 2]


def test_the_keyboard_leads_from_line_to_line(opened: Browser) -> None:
    opened.js("document.getElementById('curve-smooth').focus()")
    name = "document.activeElement.textContent"
    opened.press("Tab", 9)
    assert (opened.js(name), stressed(opened)) == ("SVG", [])
    opened.press("Tab", 9)
    assert (opened.js(name), stressed(opened)) == ("FedACD", ["FedACD"])
    opened.press("ArrowRight", 39)
    assert (opened.js(name), stressed(opened)) == ("FedAvg", ["FedAvg"])
    opened.press("ArrowLeft", 37)
    opened.press("ArrowLeft", 37)
    assert (opened.js(name), stressed(opened)) == ("FedLC", ["FedLC"])
    opened.press("Tab", 9)
    assert opened.js("document.activeElement.closest('figure') !== document.querySelector('#curve-plots figure')")
    assert stressed(opened) == []


def test_each_verdict_has_a_mark_of_its_own(browser: Browser, tmp_path: Path) -> None:
    for method in ("fedacd", "fedlc", "fedprox", "fednova", "fedavg"):
        for seed in range(2):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed)
    data = collect([tmp_path])
    verdicts = dict(
        zip(["FedACD", "FedLC", "FedProx", "FedNova"], ["sure", "likely", "unsure", "one seed"], strict=True)
    )
    for pair in data["pairs"]:
        names = [data["methods"][pair[side]] for side in ("a", "b")]
        pair["verdict"] = verdicts.get(next((name for name in names if name != "FedAvg"), ""), "unsure")
        if pair["verdict"] == "one seed":
            pair["low"] = pair["high"] = None
    (tmp_path / "page.html").write_text(render(data))
    browser.open(tmp_path / "page.html")
    trace = "document.querySelector('#difference-plots .plot').data[0]"
    found = browser.js(f"Object.fromEntries({trace}.text.map((t, i) => [t.split(', ')[1], {trace}.marker.symbol[i]]))")
    assert found == {
        "sure": "circle", "likely": "circle-open-dot", "unsure": "circle-open", "one seed": "diamond-open",
    }  # fmt: skip
    widths = browser.js(f"Object.fromEntries({trace}.marker.symbol.map((s, i) => [s, {trace}.marker.line.width[i]]))")
    assert widths["circle-open-dot"] > widths["circle-open"]  # the dot is as wide as the line, or it cannot be seen
    told = browser.js("document.getElementById('difference-marks').textContent.match(/[a-z]+( [a-z]+)?/g)")
    assert sorted(told) == sorted(found)
    assert browser.js("document.querySelectorAll('#difference-plots .errorbar path').length") == 3
    choose(browser, "difference-base", "all")
    assert browser.js("document.getElementById('difference-marks').hidden")
    assert browser.complaints == []


def test_the_first_method_is_minus_the_second(opened: Browser) -> None:
    assert opened.js("document.querySelector('#difference-plots small').textContent") == " minus FedAvg"
    heads = "[...document.querySelectorAll('#table-differences thead th')].map(h => h.textContent)"
    assert opened.js(heads)[1] == "minus"


def test_matrices_of_own_data_alone_are_shown(browser: Browser, tmp_path: Path) -> None:
    data = collect([make_run(tmp_path / "a")])
    for entry in data["matrices"]:
        entry["test"] = None
    (tmp_path / "page.html").write_text(render(data))
    browser.open(tmp_path / "page.html")
    assert drawn(browser, "matrix-plots") == 2


def test_what_is_picked_names_its_problem_while_the_list_is_closed(opened: Browser) -> None:
    """The weights' own heading has it; a picture of a partition or of matrices has no other."""
    for box in ("partition-pick", "matrix-pick"):
        picked = opened.js(f"document.getElementById('{box}').selectedOptions[0].textContent")
        assert picked.startswith("CIFAR-10, beta 0.05, "), box
    heading = "document.querySelector('#weight-plots figcaption, #weight-plots h3').textContent"
    assert "CIFAR-10, beta 0.05" in opened.js(heading)


@pytest.mark.parametrize("width", [390, 1400])
def test_a_screenshot_has_the_whole_page_and_its_plots(width: int, opened: Browser, page: Path, tmp_path: Path) -> None:
    opened.size(width, 900)
    opened.open(page)
    opened.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as image:
        picture = image.convert("RGB")
    assert picture.height == opened.js("document.documentElement.scrollHeight") > 3000
    boxes = opened.js(
        "[...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect())"
        ".map(r => [r.left, r.top, r.right, r.bottom])"
    )
    assert len(boxes) == 22
    for box in boxes:  # a plot's lines, letters and colours, and no frame alone
        colours = picture.crop(tuple(round(edge) for edge in box)).getcolors(1 << 24)
        assert len(colours or ()) > 30


@pytest.mark.parametrize(
    ("place", "name", "words"),
    [
        ("curve-plots", "curves-cifar-10-beta-0.05", ["FedACD", "FedAvg", "FedLC", "round"]),
        ("partition-plots", None, ["client"]),
    ],
)
def test_a_plot_is_saved_as_it_is_seen(
    opened: Browser, tmp_path: Path, place: str, name: str | None, words: list[str]
) -> None:
    file = saved(opened, place, "SVG", tmp_path)
    assert name is None or file.stem == name
    texts = [element.text or "" for element in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert set(words) <= set(texts)
    assert texts.count("FedAvg") == words.count("FedAvg")
