"""A headless Chromium, spoken to by the DevTools protocol over a pipe: no driver, no package, no port."""

import base64
import fcntl
import itertools
import json
import math
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page. It notes every request, console message and exception."""

    def __init__(self, program: str, profile: Path) -> None:
        # Chromium reads commands from descriptor 3 and answers on 4; ours must lie elsewhere before they move there.
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (theirs_in, theirs_out)]
        os.close(theirs_in)
        os.close(theirs_out)

        def take_places() -> None:
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [program, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=take_places, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for descriptor in moved:
            os.close(descriptor)
        self._in, self._out = ours_in, ours_out
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._session = ""
            self.call("Browser.close")
        except (OSError, EOFError):
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], PATIENCE)[0]:
                raise TimeoutError("Chromium does not answer")
            if not (piece := os.read(self._in, 1 << 20)):
                raise EOFError("Chromium has gone")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(part.get("value", part)) for part in params["args"]))
        elif kind == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    def size(self, width: int, height: int, *, touch: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, page: Path) -> None:
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.ready()

    def ready(self) -> None:
        """Wait until every plot that was asked for is drawn."""
        self.until(lambda: self.js("document.body?.dataset.state") == "ready", "the page is not ready")

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{otherwise}: {self.complaints}"
            time.sleep(0.05)

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"].get("exception", {}).get("description"))
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page. A capture beyond the viewport would make the page draw again, and be taken
        before it has: so the viewport is made as high as the page."""
        found = self.call("Page.getLayoutMetrics")
        width, height = found["cssLayoutViewport"]["clientWidth"], math.ceil(found["cssContentSize"]["height"])
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # so that the width of the content stays
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        time.sleep(0.5)  # plots and tables follow a change of the window's size after a moment
        self.ready()
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        self.call("Emulation.setScrollbarsHidden", hidden=False)
