"""From notebooks/src/NN_name.py to notebooks/NN_name.ipynb: run on the CPU, cleaned, with outputs.

    python -m snapref.lab.publish            every notebook
    python -m snapref.lab.publish 00 02      those whose names start so

A notebook is written only when it passes every rule in `faults`.
"""

import argparse
import hashlib
import os
import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from snapref.lab.stubs import expand

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SETUP_CELL = NOTEBOOKS / "src" / "setup_cell.py"  # the one text that every notebook's `setup` cell repeats
MAX_BYTES = 500_000
WIDGET = "application/vnd.jupyter.widget-view+json"

# The same numbers on every run: no GPU, one thread, one order of sets.
FIXED_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

ROOTS = "home|root|Users|tmp|usr|opt|var|mnt|work|workspace|content|private"
ABSOLUTE_PATH = re.compile(rf"(?<![\w.:/])/(?:{ROOTS})/\S*")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")
INLINE_PICTURE = re.compile(r"data:image/[\w+.-]+;base64,[A-Za-z0-9+/=\s]+")


def sources(names: list[str] | None = None) -> list[Path]:
    """Returns the py:percent sources in order, all or those whose names start with one of `names`."""
    found = sorted(NOTEBOOKS.glob("src/[0-9][0-9]_*.py"))
    return [path for path in found if not names or path.stem.startswith(tuple(names))]


def published(source: Path) -> Path:
    """Returns where the notebook of this source stands."""
    return NOTEBOOKS / f"{source.stem}.ipynb"


def read_source(source: Path) -> nbformat.NotebookNode:
    """Returns the notebook of a source, not yet run: exercises as stubs, stable ids, plain metadata."""
    notebook = expand(jupytext.read(source, fmt="py:percent"))
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")}
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: nbformat.NotebookNode, folder: Path = NOTEBOOKS, timeout: int = 900) -> None:
    """Run every cell in a fresh kernel started in `folder`; outputs land in the notebook.

    timeout: seconds for one cell. Raises nbclient's CellExecutionError with the cell and its traceback.
    """
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", record_timing=False, coalesce_streams=True,
        iopub_timeout=60,  # after which outputs that are still on their way are lost with no more than a warning
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    import matplotlib.font_manager  # noqa: F401  its list of fonts is made here: a kernel would tell of it on stderr

    client.execute(env={**os.environ, **FIXED_ENVIRONMENT})


def clean(notebook: nbformat.NotebookNode) -> None:
    """Drop what GitHub refuses or no reader sees: widget state, and widget views beside a still picture."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data.pop(WIDGET, None)


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """Returns one sentence for each rule that an executed notebook breaks."""
    found = []
    if "widgets" in notebook.metadata:
        found.append("the notebook carries metadata.widgets, which GitHub refuses to show")
    for number, cell in enumerate(notebook.cells, 1):
        texts = [cell.source]
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                found.append(f"cell {number} writes to stderr: {output.text.strip()[:200]}")
            if output.output_type == "error":
                found.append(f"cell {number} raises {output.ename}: {output.evalue}")
            data = output.get("data", {})
            if WIDGET in data and "image/png" not in data:
                found.append(f"cell {number} shows a widget without a still picture: use lab.plots.live")
            texts += [output.get("text", "")] + [v for k, v in data.items() if k.startswith("text/")]
        joined = INLINE_PICTURE.sub("", "\n".join(texts))
        for pattern, what in ((ABSOLUTE_PATH, "an absolute path"), (ADDRESS, "a memory address")):
            if match := pattern.search(joined):
                found.append(f"cell {number} shows {what}: {match[0]}")
    size = len(nbformat.writes(notebook).encode())
    if size > MAX_BYTES:
        found.append(f"the notebook has {size:,} bytes, at most {MAX_BYTES:,}: show smaller pictures")
    return found


def refresh_setup(source: Path) -> None:
    """Bring the cell tagged `setup` to the text of setup_cell.py, so that a release changes one file."""
    text = source.read_text()
    cell = '# %% tags=["setup"]\n'
    head, found, rest = text.partition(cell)
    if not found:
        raise ValueError(f"{source.name} has no setup cell; start one with the line {cell.strip()}")
    tail = re.search(r"^# %%", rest, re.MULTILINE)
    renewed = head + cell + SETUP_CELL.read_text().rstrip() + "\n\n" + (rest[tail.start() :] if tail else "")
    if renewed != text:
        source.write_text(renewed)


def publish(source: Path) -> list[str]:
    """Returns the faults found; the notebook is written when there are none."""
    refresh_setup(source)
    notebook = read_source(source)
    try:
        execute(notebook)
    except CellExecutionError as error:
        return [COLOUR_CODE.sub("", str(error)).strip()]
    clean(notebook)
    found = faults(notebook)
    if not found:
        nbformat.write(notebook, published(source))
    return found


def main() -> int:
    """Returns the exit status: 0 when every notebook was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="how the names start, such as 00; all when left out")
    names = parser.parse_args().names
    chosen = sources(names)
    if not chosen:
        print(f"no source in {NOTEBOOKS / 'src'} starts with {' or '.join(names) or 'two digits'}")
        return 1
    failed = 0
    for source in chosen:
        start = time.perf_counter()
        found = publish(source)
        failed += bool(found)
        outcome = "not written" if found else f"{published(source).stat().st_size / 1000:.0f} kB"
        seconds = time.perf_counter() - start
        print(f"{source.stem}: {outcome}, {seconds:.0f} s", *found, sep="\n  ", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
