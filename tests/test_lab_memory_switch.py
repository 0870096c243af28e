"""Notebook 10 with its switch on a ComfyUI folder: the cells that draw nano draw another model's files too."""

import shutil

import IPython.display
import jupytext
import pytest
from files_case import write_tokenizers

import snapref.sampling.opening as opening
from snapref.evaluation.full_size import TINY, write_files
from snapref.lab.publish import sources

PUBLISHED = {
    "base": "diffusion_models/anima-base-v1.0",
    "text_encoder": "text_encoders/qwen_3_06b_base",
    "vae": "vae/qwen_image_vae",
    "adapter": "loras/snapref_v1a",
}
# Cells of the plan and of the clock load nothing, these others nano whatever the switch says.
FILELESS = ("memory_bars", "make_plan", "PlanBoard", "snapref.lab.minutes", "networks =", "half =", "told =", "eight =")


@pytest.fixture
def comfyui(tmp_path, monkeypatch):
    """A folder with random files in miniature, and "anima" meaning their sizes."""
    monkeypatch.setattr(opening, "BASE", TINY)
    monkeypatch.setattr(IPython.display, "display", lambda *args, **options: None)
    (tmp_path / "apart").mkdir()
    paths = write_files("tiny", tmp_path / "apart")
    for part, place in PUBLISHED.items():
        target = tmp_path / "ComfyUI" / "models" / f"{place}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths[part], target)
    write_tokenizers(tmp_path / "ComfyUI" / "tokenizers")
    return tmp_path / "ComfyUI"


def switched(source: str, **values) -> str:
    """The switch cell with other values; every one of them must stand in it."""
    for name, value in values.items():
        head = f"{name} = {'False' if name == 'OFFLOAD' else 'None'}"
        assert head in source, f"the switch cell no longer starts {head}"
        source = source.replace(head, f"{name} = {value!r}", 1)
    return source


@pytest.mark.parametrize("adapter, offload", [("snapref_v1a", False), (None, True)])
def test_the_same_cells_draw_from_a_folder(adapter, offload, comfyui, capsys):
    (source,) = sources(["10"])
    cells = [cell for cell in jupytext.read(source).cells if cell.cell_type == "code"]
    names = {"__name__": "notebook"}
    for cell in cells:
        tags = cell.metadata.get("tags", [])
        if tags or any(mark in cell.source for mark in FILELESS) or "check(" in cell.source:
            continue
        text = cell.source
        if "FILES = None" in text:
            text = switched(text, FILES=str(comfyui), ADAPTER=adapter, OFFLOAD=offload)
        exec(compile(text, source.name, "exec"), names)  # its own asserts hold, too
    said = capsys.readouterr().out
    assert "tiny on cpu" in said and "FILES is None" not in said
    assert "after removing it, the first picture bit for bit: True" in said
    assert ("encoded with another base" in said) is (adapter is not None)
    assert names["with_it"].model == "tiny" and names["with_it"].settings.size == TINY.default_size
    assert bool(names["with_it"].references) is (adapter is not None)
    assert not names["folder"].exists()  # what it wrote is gone
