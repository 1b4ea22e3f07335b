"""A real browser without a window, driven through the DevTools protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. Use it in a `with` block."""

    def __init__(self, *more: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.profile = tempfile.mkdtemp(prefix="resitta-browser-")
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [str(CHROMIUM), *options, *more, "--remote-debugging-port=0", f"--user-data-dir={self.profile}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        page = next(target for target in self._targets() if target["type"] == "page")
        self.closing = ExitStack()
        self.socket = self.closing.enter_context(connect(page["webSocketDebuggerUrl"], max_size=None))
        self.calls = 0
        self.errors: list[str] = []
        self.send("Runtime.enable")
        self.send("Log.enable")
        self.send("Page.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()
        self.process.terminate()
        self.process.wait(timeout=20)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _targets(self) -> list[dict[str, Any]]:
        file = Path(self.profile) / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()):
            if time.monotonic() > deadline:
                raise TimeoutError("Chromium did not start")
            time.sleep(0.1)
        port = file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("id") == self.calls:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"]["exception"]["description"])
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.errors.clear()  # of the page before
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, condition: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never true: {condition}; {self.run('document.body.innerText')}"
            time.sleep(0.1)

    def text(self, element: str) -> str:
        return str(self.run(f"document.getElementById({element!r}).textContent"))

    def click(self, element: str) -> None:
        """Press the mouse where the element is, as a person does."""
        place = "(e => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        place += " return [b.x + b.width / 2, b.y + b.height / 2]; })"
        x, y = self.run(f"{place}(document.getElementById({element!r}))")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def choose(self, selector: str, file: Path) -> None:
        """Choose a file in an input, as in the system's dialog."""
        document = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def screenshot(self, path: Path) -> None:
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))
