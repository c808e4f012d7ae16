"""A real Chromium without a screen, driven over its pipe for debuggers: no other package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from conftest import HANG_S, ending_with_us, tool


class Chromium:
    """One page in a browser of its own, which keeps what is wrong: errors of scripts, and what the browser itself complains of."""

    def __init__(self, folder: Path) -> None:
        program = tool("chromium")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]
        # It reads from descriptor 3 and writes to descriptor 4.
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'
        command = ending_with_us("bash", "-c", shell, "bash", program, *flags, f"--user-data-dir={folder / 'browser'}", "about:blank")
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(command, pass_fds=(commands, answers), stderr=log, stdout=log)
        os.close(commands)
        os.close(answers)
        os.set_blocking(self._read, False)
        self._number, self._rest, self._session = 0, b"", ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"]:
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Has the browser do something, and gives its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        began = time.monotonic()
        while True:
            for told in self._heard():
                if told.get("id") == self._number:
                    assert "error" not in told, f"{method}: {told['error']}"
                    return dict(told["result"])
            assert time.monotonic() - began < HANG_S, f"no answer to {method}"
            assert self._process.poll() is None, "the browser has ended"
            time.sleep(0.005)

    def _heard(self) -> list[dict[str, Any]]:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._read, 1 << 20):
                self._rest += part
        *messages, self._rest = self._rest.split(b"\0")
        told = [dict(json.loads(message)) for message in messages]
        for message in told:
            self._note(message.get("method"), message.get("params", {}))
        return told

    def _note(self, event: str | None, values: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown" or (event == "Runtime.consoleAPICalled" and values["type"] in {"error", "warning", "assert"}):
            self.errors.append(json.dumps(values))
        if event == "Log.entryAdded" and values["entry"]["level"] in {"error", "warning"}:
            self.errors.append(json.dumps(values["entry"]))

    def open(self, address: str) -> None:
        """Goes to a page."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, width: int, scheme: str, motion: str = "no-preference") -> None:
        """Makes the window so wide, and light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        wishes = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]
        self.call("Emulation.setEmulatedMedia", features=wishes)

    def picture(self, path: Path) -> None:
        """Writes what is to be seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def press(self, key: str) -> None:
        """Presses a key."""
        code = {"Tab": 9}.get(key, 0)
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def spoken(self) -> list[tuple[str, str, str]]:
        """What a screen reader is told: the role, the name and the value of each thing."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        told = [[str(node.get(part, {}).get("value", "")) for part in ("role", "name", "value")] for node in nodes if not node["ignored"]]
        return [(role, name, value) for role, name, value in told]

    def end(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(HANG_S)
        os.close(self._read)
        os.close(self._write)
