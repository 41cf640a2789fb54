"""A headless Chromium that is told what to do over a pipe, in words of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
FLAGS += [
    "--no-first-run",
    "--disable-extensions",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
]


def find_browser() -> str | None:
    """Path of an installed Chromium or Chrome."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in a browser; use it as a context.

    Args:
        program: path of the browser.
        profile: an empty folder.
        timeout: seconds that an answer may take.
    """

    def __init__(self, program: str, profile: Path, timeout: float = 60.0) -> None:
        told, heard = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{told[0]} 4>&{heard[1]}', "bash", program, *FLAGS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(told[0], heard[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(told[0])
        os.close(heard[1])
        self.told, self.heard, self.timeout = told[1], heard[0], timeout
        self.number, self.rest, self.session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.told)
        os.close(self.heard)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns what it answers."""
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.told, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + self.timeout
        while b"\0" not in self.rest:
            ready, _, _ = select.select(
                [self.heard], [], [], max(0.0, end - time.monotonic())
            )
            assert ready, "the browser does not answer"
            self.rest += os.read(self.heard, 1 << 20)
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def open(
        self, path: Path, *, width: int = 1400, height: int = 900, dark: bool = False
    ) -> None:
        """Opens a file and waits until it is loaded."""
        look = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[look])
        size = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": False,
        }
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message())

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def faults(self) -> list[str]:
        """What the page's script threw or logged as an error."""
        self.run("0")
        thrown = [
            e["params"]
            for e in self.events
            if e.get("method") == "Runtime.exceptionThrown"
        ]
        logged = [
            e["params"]
            for e in self.events
            if e.get("method") == "Runtime.consoleAPICalled"
        ]
        texts = [
            t["exceptionDetails"].get("exception", {}).get("description", "")
            for t in thrown
        ]
        return texts + [
            str(log["args"]) for log in logged if log["type"] in ("error", "assert")
        ]

    def fetched(self) -> list[str]:
        """Addresses that the page asked for, but its own."""
        asked = [
            e["params"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]
        return [
            a["request"]["url"]
            for a in asked
            if not a["request"]["url"].startswith("file:")
        ]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event, such as ``mousePressed``."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """A click of the left button."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """A key that is pressed and released."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def printed(self, path: Path) -> None:
        """The page on paper, as a PDF."""
        sheet = self.call(
            "Page.printToPDF", preferCSSPageSize=True, printBackground=False
        )
        path.write_bytes(base64.b64decode(sheet["data"]))
