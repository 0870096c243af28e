"""JupyterLab in headless Chromium, for tests that need a real front end.

    with lab(folder) as address, page(address, "notebook.ipynb") as tab:
        run_all(tab)
        move_slider(tab, ".strength-slider", steps=3)
        wait_for_new_picture(tab, ".result-picture", before)

The ready signal is the kernel's own state: a run-all sent while the toolbar's dot is already calm but the
session is not yet connected is lost.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PATIENCE = 180  # seconds for whatever a browser or a server is waited for; a shared machine may stand still for long
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},  # a slow test would have its outputs saved in the repository
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page, also below the fold
}
READY = """() => {
    const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    const kernel = context?.session?.kernel;
    return !!(context?.isReady && kernel?.connectionStatus === 'connected' && kernel.status === 'idle');
}"""
PICTURE = """(selector) => {
    const found = document.querySelector(selector);
    const image = found?.tagName === 'IMG' ? found : found?.querySelector('img');
    return image && image.complete && image.naturalWidth > 0 ? image.src : null;
}"""


def missing() -> str:
    """Returns why no browser test can run here, or ""."""
    if not CHROMIUM:
        return "no chromium on this machine (Debian: apt-get install chromium)"
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        return "playwright is not installed (pip install '.[test]')"
    return ""


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """Start JupyterLab on `folder` with a home of its own; gives its address, stops it on exit."""
    with TemporaryDirectory() as name:
        home = Path(name)
        for setting, value in SETTINGS.items():
            path = home / "settings" / "@jupyterlab" / f"{setting}.jupyterlab-settings"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(value))
        server, address = _start(folder, home)
        try:
            yield address
        finally:
            _stop(server)


@contextmanager
def page(address: str, notebook: str) -> Iterator:
    """Open one notebook; gives the playwright page when its kernel is idle.

    On a clean exit raises AssertionError when the page logged an error or asked for anything elsewhere.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        limit = PATIENCE * 1000
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=CHROMIUM_FLAGS, timeout=limit
        )
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 1000})
            context.set_default_timeout(limit)
            tab = context.new_page()
            bad: list[str] = []
            own = (address, address.replace("http", "ws"), "data:", "blob:")
            tab.on("pageerror", lambda error: bad.append(str(error)))
            tab.on("console", lambda message: bad.append(message.text) if message.type == "error" else None)
            tab.on("request", lambda r: None if r.url.startswith(own) else bad.append(f"asks for {r.url}"))
            tab.goto(f"{address}/doc/tree/{notebook}?reset", wait_until="domcontentloaded")
            tab.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
            tab.wait_for_function(READY)
            yield tab
            assert not bad, bad[:5]
        finally:
            browser.close()


def run_all(tab) -> None:
    """Run every cell and return when the last is done; raises AssertionError when a cell wrote to stderr."""
    tab.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    red = tab.locator('.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"]')
    assert red.count() == 0, red.first.inner_text()


def picture(tab, selector: str) -> str:
    """Returns the address of the picture that the widget shows, once it has loaded."""
    return tab.wait_for_function(PICTURE, arg=selector).json_value()


def move_slider(tab, selector: str, steps: int) -> None:
    """Press an arrow key on a slider: right for positive steps, left for negative ones."""
    tab.locator(f"{selector} .noUi-handle").first.focus()
    for _ in range(abs(steps)):
        tab.keyboard.press("ArrowRight" if steps > 0 else "ArrowLeft")


def wait_for_new_picture(tab, selector: str, before: str) -> str:
    """Returns the new picture's address once it differs from `before`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        now = picture(tab, selector)
        if now != before:
            return now
        tab.wait_for_timeout(100)
    raise AssertionError(f"the picture in {selector} did not change in {PATIENCE} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _command(folder: Path, home: Path, port: int) -> list[str]:
    return [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
        f"--ServerApp.root_dir={folder}", f"--LabApp.user_settings_dir={home / 'settings'}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip


def _environment(home: Path) -> dict[str, str]:
    # A kernel that finds no list of fonts makes one, and says so on stderr when that takes more than 5 s; importing
    # the font manager makes the list here.
    import matplotlib.font_manager

    own = {"HOME": home, "JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_DATA_DIR": home / "data",
           "MPLCONFIGDIR": matplotlib.get_cachedir()}  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **{key: str(value) for key, value in own.items()}, "PATH": path}


def _start(folder: Path, home: Path, tries: int = 3) -> tuple[subprocess.Popen, str]:
    """(the server, its address). Raises RuntimeError with the log's end when it ends each time or is silent."""
    log = home / "lab.log"
    for _ in range(tries):
        port = _free_port()  # and another process may take it before the server does
        with log.open("w") as output:
            server = subprocess.Popen(
                _command(folder, home, port), stdout=output, stderr=subprocess.STDOUT, env=_environment(home)
            )
        address = f"http://127.0.0.1:{port}"
        if _answers(address, server):
            return server, address
        ended = server.poll()
        _stop(server)
        if ended is None:
            break
    said = f"did not answer in {PATIENCE} s" if ended is None else f"ended with {ended}"
    raise RuntimeError(f"JupyterLab {said}:\n{log.read_text()[-2000:]}")


def _answers(address: str, server: subprocess.Popen) -> bool:
    """Waits for the first answer; False when the server ended, or was silent for too long."""
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/api", timeout=10).read()
            return True
        except (OSError, http.client.HTTPException):
            time.sleep(0.2)
    return False


def _stop(server: subprocess.Popen) -> None:
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
