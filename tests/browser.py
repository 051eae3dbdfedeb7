"""A headless Chromium for tests of pages, driven by the DevTools protocol over a pair of pipes."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Browser", "opened"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--window-size=1240,900",
)
NAVIGATED = "Inspected target navigated or closed"
"""The error with which Chromium answers a call if its page has gone meanwhile."""


class Browser:
    """A connection to Chromium with at most one open page."""

    def __init__(self, receives: int, sends: int) -> None:
        self._from, self._to = os.fdopen(receives, "rb", buffering=0), os.fdopen(sends, "wb", buffering=0)
        self._rest, self._count, self._session = b"", 0, ""
        self.errors: list[str] = []
        """Errors of the console, and exceptions that scripts raised."""

    def open(self, path: Path) -> None:
        """Load a file in a page without network, and wait for its load event."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def leave(self) -> None:
        """Close the page."""
        self.call("Page.close")
        self._session = ""

    def ask(self, script: str) -> Any:
        """Return the value of a JavaScript expression on the page; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression on the page is true."""
        look = f"const look = () => ({script}) ? done(true) : setTimeout(look, 10); look()"
        self.ask(f"new Promise(done => {{ {look} }})")

    def seconds(self) -> float:
        """Return the CPU time that the page's scripts, layout and other tasks have taken so far."""
        found = {metric["name"]: metric["value"] for metric in self.call("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])

    def picture(self, path: Path, *, width: int = 1240, height: int = 900, dark: bool = False) -> None:
        """Write what a window of this size shows as a PNG."""
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        shade = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[shade])
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; the command is sent again if the page loads another one meanwhile."""
        answer = self._answer(method, parameters)
        while answer.get("error", {}).get("message") == NAVIGATED:
            answer = self._answer(method, parameters)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _answer(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._count, "method": method, "params": parameters, **session}
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            pass
        return answer

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._from.read(1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))
        return message


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """Start a browser that keeps its own files in a folder."""
    assert CHROMIUM is not None
    theirs_in, sends = os.pipe()
    receives, theirs_out = os.pipe()
    flags = [*FLAGS, f"--user-data-dir={folder}"]
    # It reads commands from descriptor 3 and answers at 4.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *flags],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    browser = Browser(receives, sends)
    try:
        yield browser
        browser._session = ""
        browser.call("Browser.close")
    finally:
        process.kill()
        process.wait()
        browser._from.close()
        browser._to.close()
