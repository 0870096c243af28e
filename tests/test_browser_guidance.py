"""The board of guidance sliders in a real JupyterLab: a slider draws anew, a second scale costs a third call."""

from pathlib import Path

import browser
import nbformat
import pytest

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "can run")

CELLS = [
    "import snapref\nfrom snapref.lab.guidance_board import GuidanceBoard\n"
    "from snapref.world.samples import references",
    "settings = snapref.Settings(steps=4, seed=3, guidance=4)\n"
    "board = GuidanceBoard(snapref.load('nano', device='cpu'), references()[1].picture(), '1girl, beach', settings)\n"
    "board.show()",
]
STATUS, PICTURE = ".snapref-guidance-status", ".snapref-guidance-picture"


def test_sliders_of_the_guidance_board_draw_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "board.ipynb")
    with browser.lab(tmp_path) as address, browser.page(address, "board.ipynb") as tab:
        browser.run_all(tab)
        first = browser.picture(tab, PICTURE)
        assert "2 model calls per step" in tab.locator(STATUS).first.inner_text()
        browser.move_slider(tab, ".snapref-guidance-guidance", steps=1)  # one press, one drawing
        second = browser.wait_for_new_picture(tab, PICTURE, first)
        assert tab.locator(".jp-RenderedImage").count() == 0, "the still picture shows beside the live widget"

        # At r = 1 or r = s two calls would do; the slider starts at s of the start, which is no longer s.
        tab.locator(".snapref-guidance-two-scales input").first.check()
        told = f"document.querySelector('{STATUS}').innerText.includes('3 model calls per step')"
        tab.wait_for_function(told)
        browser.wait_for_new_picture(tab, PICTURE, second)
