"""A real browser without a window, spoken to by its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--no-first-run", "--remote-debugging-pipe"),
)
PATIENCE = 60


class Browser:
    """One page of a Chromium that starts here and ends with `close`."""

    def __init__(self, profile: Path) -> None:
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()
        # The browser reads commands from its file 3 and answers on its file 4.
        words = f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}'
        program = ["bash", "-c", words, "browser", str(PROGRAM), *FLAGS]
        self._process = subprocess.Popen(
            [*program, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._number, self._buffer, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a command; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, f"the browser has not answered for {PATIENCE} seconds"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Load a page at a width in CSS pixels, until all of its figures are drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        drawn = """new Promise(done => { const look = () => {
            const plots = [...document.querySelectorAll(".plot")];
            const all = document.readyState === "complete" && plots.length > 0
                && plots.every(plot => plot.dataset.drawn);
            all ? done(true) : setTimeout(look, 50); }; look(); })"""
        self.value(drawn)

    def value(self, expression: str) -> Any:
        """What JavaScript gives, a promise's value too."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key, down and up."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": {"Tab": 9}.get(key, 32)}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, out: Path) -> None:
        """The whole page as PNG."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        out.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
