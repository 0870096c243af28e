"""What only a browser can show: a notebook opens in JupyterLab, runs, and its slider changes the picture."""

import itertools
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import browser
import nbformat
import pytest

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "can run")

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FIRST = NOTEBOOKS / "00_start_here.ipynb"

TINY = [
    "import ipywidgets, numpy\nfrom snapref.lab.plots import live, png",
    "def draw(level):\n    return png(numpy.full((32, 32), level / 10))",
    "slider = ipywidgets.IntSlider(value=0, max=10, description='level').add_class('level-slider')\n"
    "picture = ipywidgets.Image(value=draw(0), format='png').add_class('level-picture')\n"
    "slider.observe(lambda change: setattr(picture, 'value', draw(change['new'])), 'value')\n"
    "live(ipywidgets.VBox([slider, picture]), draw(0), 'A grey square; the slider sets its level')",
]


SAVED_BY_ITSELF = """async () => {
    const settings = window.jupyterapp.serviceManager.settings;
    return (await settings.fetch('@jupyterlab/docmanager-extension:plugin')).raw;
}"""


def test_slider_changes_picture_in_tiny_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    cells = [nbformat.v4.new_code_cell(source) for source in TINY]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "tiny.ipynb")
    with browser.lab(tmp_path) as address, browser.page(address, "tiny.ipynb") as tab:
        browser.run_all(tab)
        before = browser.picture(tab, ".level-picture")
        browser.move_slider(tab, ".level-slider", steps=3)
        after = browser.wait_for_new_picture(tab, ".level-picture", before)
        assert after != before
        assert tab.locator(".jp-RenderedImage").count() == 0, "the still picture shows beside the live widget"
        assert '"autosave": false' in tab.evaluate(SAVED_BY_ITSELF)


@pytest.mark.skipif(not FIRST.exists(), reason=f"{FIRST.name} is not published yet")
def test_strength_slider_changes_picture_in_first_notebook():
    with browser.lab(NOTEBOOKS) as address, browser.page(address, FIRST.name) as tab:
        browser.run_all(tab)
        before = browser.picture(tab, ".snapref-picture")
        browser.move_slider(tab, ".snapref-strength", steps=-10)
        browser.wait_for_new_picture(tab, ".snapref-picture", before)  # a preview at first
        tab.wait_for_function("!document.querySelector('.snapref-status').innerText.startsWith('drawing')")
        assert "Nothing" not in tab.locator(".snapref-status").first.inner_text()
        assert browser.picture(tab, ".snapref-picture") != before


def greet(listener: socket.socket) -> None:
    """Answers whoever connects in words that are no HTTP, until the listener is closed."""
    while True:
        try:
            with listener.accept()[0] as caller:
                caller.recv(1000)
                caller.sendall(b"hello\r\n")
        except OSError:
            return


def test_a_port_that_somebody_took_costs_one_more_try(tmp_path, monkeypatch):
    def serve(folder, home, port):
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]

    (tmp_path / "api").write_text("here")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        threading.Thread(target=greet, args=(taken,), daemon=True).start()
        ports = itertools.chain([taken.getsockname()[1]], iter(browser._free_port, None))
        monkeypatch.setattr(browser, "_command", serve)
        monkeypatch.setattr(browser, "_free_port", lambda: next(ports))
        with browser.lab(tmp_path) as address:
            assert urllib.request.urlopen(f"{address}/api").read() == b"here"
        taken.shutdown(socket.SHUT_RDWR)  # wakes the thread
    monkeypatch.setattr(browser, "_command", lambda *_: [sys.executable, "-c", "raise SystemExit('no room')"])
    with pytest.raises(RuntimeError, match="ended with 1:\nno room"), browser.lab(tmp_path):
        pass


def test_kernels_find_the_list_of_fonts(tmp_path):
    assert [*Path(browser._environment(tmp_path)["MPLCONFIGDIR"]).glob("fontlist-*.json")]
