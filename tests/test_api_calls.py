"""What a program does around a run: callbacks, threads, runs inside runs."""

import threading
from pathlib import Path
from typing import Any

import fedacd
from fedacd.data import Dataset
from fedacd.errors import ConfigError
from tests.test_api import TINY


def test_a_callback_may_change_its_record(digits: Dataset, tmp_path: Path) -> None:
    result = fedacd.run(dataset=digits, **TINY, out=str(tmp_path / "run"), on_round=lambda record: record.clear())
    assert result.final == fedacd.Result.load(tmp_path / "run").final != {}


def test_one_thread_trains_at_a_time_and_may_begin_a_run_inside_another(digits: Dataset, tmp_path: Path) -> None:
    found: list[Any] = []

    def elsewhere() -> None:
        try:
            found.append(fedacd.run(dataset=digits, **TINY, out=str(tmp_path / "thread")))
        except ConfigError as error:
            found.append(str(error))

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            found.append(fedacd.run(dataset=digits, **TINY, out=str(tmp_path / "inside"), workers=1).history)

    outer = fedacd.run(dataset=digits, **TINY, out=str(tmp_path / "outer"), workers=1, on_round=on_round)
    refused, inside = found
    assert isinstance(refused, str) and refused.startswith("another thread of this process trains")
    without_clock = [[{**line, "seconds": 0} for line in history] for history in (outer.history, inside)]
    assert without_clock[0] == without_clock[1]
