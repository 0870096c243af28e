"""Checks answer in one sentence whatever the reader wrote; stubs come from solutions."""

import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from snapref.lab.exercises import PASSED, verdict
from snapref.lab.stubs import expand, solve

HALF = torch.tensor([0.5, 1.0])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (1.0, 1.0), (1, 1.0 + 1e-7), (True, True), ("left", "left"), (HALF, HALF), (HALF.numpy(), HALF),
        (HALF.to(torch.bfloat16), HALF), ((HALF, "a"), (HALF, "a")), ([1, 2], (1, 2)), (HALF, [0.5, 1.0]),
        (torch.tensor([1, 2]), np.array([1, 2])), (float("nan"), float("nan")), (1j, 1j),
    ],
)  # fmt: skip
def test_equal_answers_pass(answer, expected):
    assert verdict(lambda: answer, [((), expected)]).startswith(PASSED)


@pytest.mark.parametrize(
    ("answer", "expected", "says"),
    [
        (None, 1.0, "gives nothing back"), (..., 1.0, "gives nothing back"),
        (2.0, 1.0, "gives 2, expected 1"), ("a", 1.0, "gives 'a', expected 1.0"),
        (HALF, HALF[:1], "has shape (2,), expected (1,)"),
        (HALF + 1, HALF, "off by up to 1"), ((1, 2), (1, 2, 3), "gives 2 values, expected 3"),
        ((1, 5), (1, 2), "gives 5, expected 2 (value 1)"), ([[1], [1, 2]], HALF, "expected"),
        (HALF > 0.7, HALF > 0.2, "off by up to 1"),
    ],
)  # fmt: skip
def test_unequal_answers_are_told(answer, expected, says):
    def mine(x):
        return answer

    sentence = verdict(mine, [((3,), expected)], hint="Look at equation 2.")
    assert sentence.startswith("Not yet: mine") and says in sentence


def test_an_exception_of_the_readers_code_is_told():
    sentence = verdict(lambda x: 1 / x, [((0,), 1)], hint="Zero is special.")
    assert "ZeroDivisionError: division by zero" in sentence and sentence.endswith("Zero is special.")


def exercise(source: str):
    return new_code_cell(source, metadata={"tags": ["exercise"]})


def test_lines_outside_the_marks_stay_and_hints_may_stand_between():
    body = "    y = {'a': x + 1}['a']\n    y *= 2\n"
    source = f"def f(x):\n    y = x\n    # solution\n{body}    # end\n    return y"
    notebook = new_notebook(cells=[exercise(source), new_code_cell("check(f, [])")])
    stub, check, folded = expand(notebook).cells
    assert stub.source == "def f(x):\n    y = x\n    ...  # your lines here\n    return y"
    assert notebook.cells[0].source == source, "the source itself was changed"
    again = solve(expand(notebook)).cells
    assert again[3].source == f"def f(x):\n    y = x\n{body}    return y"
    assert again[4].source == check.source


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([exercise("def f(): ...")], "lacks '# solution'"),
        ([exercise("# solution\n1\n# end")], "no check after it"),
        ([exercise("# solution\n1\n# end"), exercise("# solution\n2\n# end")], "before the check"),
    ],
)
def test_an_incomplete_exercise_is_refused(cells, says):
    with pytest.raises(ValueError, match=says):
        expand(new_notebook(cells=cells))
