"""What only a browser can show: a notebook opens in JupyterLab, runs, and its slider changes the picture."""

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


@pytest.mark.skipif(not FIRST.exists(), reason=f"{FIRST.name} is not published yet")
def test_strength_slider_changes_picture_in_first_notebook():
    with browser.lab(NOTEBOOKS) as address, browser.page(address, FIRST.name) as tab:
        browser.run_all(tab)
        before = browser.picture(tab, ".snapref-picture")
        browser.move_slider(tab, ".snapref-strength", steps=-10)
        browser.wait_for_new_picture(tab, ".snapref-picture", before)  # a preview at first
        tab.wait_for_function(
            "!document.querySelector('.snapref-status').innerText.startsWith('drawing')", timeout=120_000
        )
        assert "Nothing" not in tab.locator(".snapref-status").first.inner_text()
        assert browser.picture(tab, ".snapref-picture") != before
