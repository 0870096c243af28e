"""Published notebooks: the cells of their sources, no broken rule, and they run again in a fresh kernel."""

import resource
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from snapref.lab import publish
from snapref.lab.exercises import PASSED
from snapref.lab.stubs import solve

SOURCES = publish.sources()
SHORTER = {"04_two_loras": ("STEPS = 240", "STEPS = 24")}  # trained in full where it is published
LONGEST = 180  # seconds of CPU time a notebook may take; the clock also counts what else the machine does
PATIENCE = 900  # seconds by the clock for one cell, for a kernel that hangs
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)

TINY = '''# %% [markdown]
# # Tiny

# %% tags=["setup"]
old = "setup"

# %%
import ipywidgets
from snapref.lab.exercises import check
from snapref.lab.plots import grid, live, still

# %% tags=["exercise"]
def double(x):
    # solution
    return 2 * x
    # end

# %%
check(double, [((3,), 6), ((0.5,), 1.0)])

# %%
white = grid([__import__("numpy").ones((8, 8))], ["white"])
live(ipywidgets.IntSlider(), white, "A white square")
'''


@each_source
def test_published_notebook_has_the_cells_of_its_source(source):
    path = publish.published(source)
    assert path.exists(), f"{path.name} is missing: make notebooks NAMES={source.stem[:2]}"
    ours, theirs = nbformat.read(path, as_version=4), publish.read_source(source)
    nbformat.validate(ours)
    cells = [[(c.cell_type, c.id, c.source) for c in notebook.cells] for notebook in (ours, theirs)]
    assert cells[0] == cells[1], f"{path.name} is behind its source: make notebooks NAMES={source.stem[:2]}"


@each_source
def test_published_notebook_keeps_the_rules(source):
    notebook = nbformat.read(publish.published(source), as_version=4)
    assert publish.faults(notebook) == []
    unrun = [c.source for c in notebook.cells if c.cell_type == "code" and c.execution_count is None]
    assert not unrun, "published without being run"


@each_source
def test_setup_cell_is_the_common_one(source):
    setup = [c.source for c in jupytext.read(source).cells if "setup" in c.metadata.get("tags", [])]
    assert setup == [publish.SETUP_CELL.read_text().strip()]


def kernel_seconds() -> float:
    """CPU time of every child process that has ended, such as the kernel of `publish.execute`."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def shorter(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook with its one cell tagged `long` made short."""
    long = [cell for cell in notebook.cells if "long" in cell.metadata.get("tags", [])]
    assert len(long) == (name in SHORTER)
    for cell in long:
        whole, part = SHORTER[name]
        assert whole in cell.source
        cell.source = cell.source.replace(whole, part)
    return notebook


@each_source
def test_notebook_runs_afresh_and_its_solutions_pass(source):
    notebook = shorter(solve(publish.read_source(source)), source.stem)
    before = kernel_seconds()
    publish.execute(notebook, timeout=PATIENCE)
    seconds = kernel_seconds() - before
    publish.clean(notebook)
    assert publish.faults(notebook) == []
    for cell in notebook.cells:
        if "solved" in cell.metadata.get("tags", []):
            assert cell.outputs and cell.outputs[0].text.startswith(PASSED), cell.outputs
    assert seconds < LONGEST, f"{source.stem} took {seconds:.0f} s of CPU time; at most {LONGEST}"


def test_seconds_are_those_the_kernel_computed(tmp_path):
    spend = "import time\nwhile time.process_time() < 1.5: pass"
    before = kernel_seconds()
    publish.execute(new_notebook(cells=[new_code_cell(spend)]), tmp_path, PATIENCE)
    assert kernel_seconds() - before > 1.4


def test_outputs_that_come_late_are_waited_for(monkeypatch):
    given = {}

    class Client:
        def __init__(self, notebook, **options):
            given.update(options)

        def execute(self, **options):
            pass

    monkeypatch.setattr(publish, "NotebookClient", Client)
    publish.execute(new_notebook(), timeout=7)
    assert given["timeout"] == 7 and given["iopub_timeout"] >= 60


def test_every_published_notebook_has_a_source():
    assert {path.stem for path in publish.NOTEBOOKS.glob("*.ipynb")} <= {source.stem for source in SOURCES}


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Path:
    """A source of its own in a notebooks folder of its own."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "setup_cell.py").write_text("1 + 1\n")
    (tmp_path / "src" / "07_tiny.py").write_text(TINY)
    monkeypatch.setattr(publish, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(publish, "SETUP_CELL", tmp_path / "src" / "setup_cell.py")
    monkeypatch.setenv("PYTHONPATH", str(Path(publish.__file__).parents[2]))
    monkeypatch.setattr(publish.execute, "__defaults__", (tmp_path, PATIENCE))
    return tmp_path / "src" / "07_tiny.py"


def test_publishing_makes_stub_solution_and_still_and_is_repeatable(tiny):
    assert publish.publish(tiny) == []
    path = publish.published(tiny)
    once = path.read_text()
    assert "old =" not in tiny.read_text(), "the setup cell was not renewed"
    notebook = nbformat.reads(once, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    assert sources[3] == "def double(x):\n    ...  # your lines here"
    assert sources[5].startswith("<details>") and "return 2 * x" in sources[5]
    assert notebook.cells[4].outputs[0].text.startswith("Not yet")
    data = notebook.cells[6].outputs[0].data
    assert set(data) == {"image/png", "text/plain"}
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert publish.publish(tiny) == []
    assert path.read_text() == once

    solved = solve(publish.read_source(tiny))
    publish.execute(solved)
    assert [c.outputs[0].text[:5] for c in solved.cells if "solved" in c.metadata.get("tags", [])] == [PASSED]


def test_a_failing_notebook_is_not_written(tiny):
    tiny.write_text(TINY + "\n# %%\n1 / 0\n")
    (fault,) = publish.publish(tiny)
    assert "ZeroDivisionError" in fault
    assert not publish.published(tiny).exists()


def code_with(**output) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell("x", outputs=[new_output(**output)])])


BROKEN = {
    "stderr": code_with(output_type="stream", name="stderr", text="UserWarning"),
    "absolute path": code_with(output_type="stream", name="stdout", text="saved to /opt/out.png"),
    "memory address": code_with(output_type="stream", name="stdout", text="<object at 0x7f12aa34bb>"),
    "still picture": code_with(output_type="display_data", data={publish.WIDGET: {}, "text/plain": "Slider"}),
    "metadata.widgets": new_notebook(metadata={"widgets": {}}),
    "bytes": new_notebook(cells=[new_markdown_cell("x" * publish.MAX_BYTES)]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_rule_finds_its_fault(what):
    (fault,) = publish.faults(BROKEN[what])
    assert what in fault


def test_addresses_on_the_web_and_inline_pictures_are_no_paths():
    text = "https://example.org/home/page and <img src='data:image/png;base64,AA/ /tmp/xx=='> out/home/a.png"
    assert publish.faults(code_with(output_type="stream", name="stdout", text=text)) == []
