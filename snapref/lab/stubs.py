"""Stub, check and folded solution of an exercise, all from one source.

In notebooks/src an exercise is a code cell tagged `exercise` that holds the solution between two marks, and
the next code cell checks it:

    # %% tags=["exercise"]
    def double(x):
        # solution
        return 2 * x
        # end

    # %%
    check(double, [((3,), 6), ((0.5,), 1.0)])

`expand` turns the first into a stub and adds the folded solution below the check; `solve` puts the solution
back and runs the check again, which is how a test knows that every solution passes. Hints are ordinary text
cells with `<details>`, between the two or before them.
"""

import re

import nbformat

SOLUTION = re.compile(r"^(?P<indent>[ ]*)# solution\n(?P<body>.*?)^[ ]*# end[ ]*$", re.DOTALL | re.MULTILINE)
FOLDED = "<details><summary>Solution</summary>\n\n```python\n{code}\n```\n\n</details>"


def expand(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns the notebook a reader gets: stubs for the exercises, each solution folded below its check.

    Raises ValueError when an exercise has no solution between its marks or no check after it.
    """
    cells, folded = [], None
    for cell in notebook.cells:
        if cell.cell_type == "code" and "exercise" in cell.metadata.get("tags", []):
            if folded is not None:
                raise ValueError(f"this exercise comes before the check of the one above it:\n{cell.source}")
            stub, count = SOLUTION.subn(lambda match: f"{match['indent']}...  # your lines here", cell.source)
            if not count:
                raise ValueError(f"this exercise lacks '# solution' or '# end':\n{cell.source}")
            text = FOLDED.format(code=SOLUTION.sub(lambda match: match["body"].rstrip("\n"), cell.source))
            folded = nbformat.v4.new_markdown_cell(text, metadata={"tags": ["solution"]})
            cells.append(nbformat.from_dict({**cell, "source": stub}))
        elif cell.cell_type == "code" and folded is not None:
            cells += [cell, folded]
            folded = None
        else:
            cells.append(cell)
    if folded is not None:
        raise ValueError("the last exercise has no check after it")
    return nbformat.from_dict({**notebook, "cells": cells})


def solve(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns an expanded notebook in which every check is followed by the solution and the check again."""
    cells, check_cell = [], None
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            check_cell = cell
        elif "solution" in cell.metadata.get("tags", []):
            code = re.search(r"```python\n(.*?)\n```", cell.source, re.DOTALL)[1]
            cells.append(nbformat.v4.new_code_cell(code))
            cells.append(nbformat.v4.new_code_cell(check_cell.source, metadata={"tags": ["solved"]}))
    return nbformat.from_dict({**notebook, "cells": cells})
