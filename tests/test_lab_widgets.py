"""The board's logic without a browser: what is drawn again, what follows what, and what is told."""

import asyncio
import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from pipeline_case import TINY, TINY_ADAPTER, tiny_pipeline

from snapref.lab import soon
from snapref.lab.board import Board, sentence
from snapref.lab.comparison import PREVIEW_EVERY, WITH, WITHOUT, Comparer
from snapref.lab.picker import ReferencePicker, file_bytes, style
from snapref.lab.plots import png
from snapref.lab.prompt_box import PromptBox, scene_only, with_tag
from snapref.sampling.settings import Settings, SettingsError
from snapref.world import IDENTITY, split_of


class FakePipe:
    """Paints one colour per drawing and writes down what it was asked."""

    config, codec, adapter = TINY, None, SimpleNamespace(config=TINY_ADAPTER)

    def __init__(self):
        self.read, self.drawn, self.error = [], [], None

    def encode(self, picture, mode=None, ref_megapixels=None):
        self.read.append((mode, ref_megapixels))
        return SimpleNamespace(tokens=(12,), nbytes=1000)

    def __call__(self, prompt, reference=None, *, settings, callback, quiet):
        if self.error:
            raise self.error
        self.drawn.append((prompt, reference is not None, settings))
        for step in range(settings.resolved(self.config).steps):
            callback(step, 0.5, None, None)
        return SimpleNamespace(image=self.decode(None)[0])

    def decode(self, latents):
        height, width = self.config.default_size
        return [Image.new("RGB", (width, height), (len(self.drawn) * 40 % 256, 0, 0))]


@pytest.fixture
def pipe() -> FakePipe:
    return FakePipe()


@pytest.fixture
def board(pipe) -> Board:
    board = Board(pipe)
    board.draw()
    return board


def test_the_first_drawing_reads_once_and_draws_twice(board, pipe):
    assert len(pipe.read) == 1 and [read for _, read, _ in pipe.drawn] == [True, False]
    assert board.status.value.startswith("Reference read in") and "2 pictures" in board.status.value
    assert board.notes.value == ""


def test_strength_draws_one_picture_and_reads_nothing(board, pipe):
    before = board.picture.value
    board.controls["strength"].value = 0.5
    assert len(pipe.read) == 1 and len(pipe.drawn) == 3
    assert pipe.drawn[-1][1] and pipe.drawn[-1][2].strength == 0.5
    assert board.status.value.startswith("Reference not read again; 1 picture drawn")
    assert board.picture.value != before


@pytest.mark.parametrize("name, value", [("seed", 7), ("guidance", 5.0), ("steps", 9)])
def test_what_changes_the_noise_or_the_steps_draws_both(board, pipe, name, value):
    board.controls[name].value = value
    assert len(pipe.read) == 1 and [read for _, read, _ in pipe.drawn[2:]] == [True, False]
    assert all(getattr(settings, name) == value for *_, settings in pipe.drawn[2:])


def test_mode_reads_again_and_keeps_the_base_picture(board, pipe):
    board.controls["mode"].value = "char"
    assert [mode for mode, _ in pipe.read] == ["cs", "char"] and len(pipe.drawn) == 3


def test_a_click_on_a_sample_reads_it_and_keeps_the_base_picture(board, pipe):
    board.picker.buttons[2].click()
    assert len(pipe.read) == 2 and [read for _, read, _ in pipe.drawn[2:]] == [True]
    chosen = ["snapref-chosen" in button._dom_classes for button in board.picker.buttons]
    assert [i for i, is_chosen in enumerate(chosen) if is_chosen] == [2]
    assert "pink hair" in board.describe()


def test_every_step_is_shown_and_some_pictures_of_the_way(pipe):
    seen = []
    black = np.zeros((64, 48, 3), np.uint8)
    Comparer(pipe)("1girl", black, Settings(steps=6), lambda *step: seen.append(step))
    assert [step[:2] for step in seen] == [(which, i) for which in (WITH, WITHOUT) for i in range(1, 7)]
    assert all(steps == 6 for _, _, steps, _ in seen)
    assert [done for which, done, _, look in seen if look and which == WITH] == [PREVIEW_EVERY, 6]


def test_previews_show_while_drawing(board, pipe):
    pictures = []
    board.picture.observe(lambda change: pictures.append(change["new"]), "value")
    board.controls["steps"].value = 8
    assert len(pictures) >= 2 and board.previews == {} and board.bar.value == 0


def test_a_large_picture_is_read_at_the_models_own_area(board, pipe):
    upload(board.picker, Image.new("RGB", (1600, 1200), "red"))
    assert pipe.read[-1][1] == pytest.approx(64 * 48 / 1e6)
    assert board.shown.reference.size == (64, 48)


def test_a_prompt_with_unknown_tags_is_drawn_and_told(board, pipe):
    board.prompt.text.value = "1girl, beech & <b>, waving"
    assert pipe.drawn[-1][0] == "1girl, beech & <b>, waving"
    assert "nano does not know the tag" in board.notes.value and "&amp; &lt;b&gt;" in board.notes.value


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SettingsError("strength is 3; it must be a number from 0 to 2"), "Note: strength is 3"),
        (RuntimeError("out of memory"), "Note: RuntimeError: out of memory"),
        (KeyError("x"), "Note: KeyError"),
    ],
)
def test_an_error_becomes_a_sentence_and_the_board_goes_on(board, pipe, error, told):
    pipe.error = error
    board.button.click()
    assert told in board.notes.value and board.status.value == "Nothing was drawn."
    pipe.error = None
    board.button.click()
    assert board.notes.value == "" and "drawn in" in board.status.value


def test_an_interrupt_is_told(board, pipe):
    pipe.error = KeyboardInterrupt()
    board.button.click()
    assert board.status.value.startswith("Stopped")


def test_changes_close_together_make_one_drawing(board, pipe, monkeypatch):
    monkeypatch.setattr(soon, "PAUSE", 0.01)

    async def hold_the_arrow_key():
        for value in (0.9, 0.8, 0.7):
            board.controls["strength"].value = value
        assert len(pipe.drawn) == 2
        await asyncio.sleep(0.1)

    asyncio.run(hold_the_arrow_key())
    assert [settings.strength for *_, settings in pipe.drawn] == [1.0, 0.0, 0.7]


def test_draw_does_not_wait_for_a_drawing_asked_for_before(board, pipe, monkeypatch):
    monkeypatch.setattr(soon, "PAUSE", 0.01)

    async def change_and_press():
        board.controls["strength"].value = 0.9
        board.button.click()
        await asyncio.sleep(0.1)

    asyncio.run(change_and_press())
    assert [settings.strength for *_, settings in pipe.drawn] == [1.0, 0.0, 0.9]


def test_without_an_adapter_the_board_says_so(pipe):
    pipe.adapter = None
    pipe.encode = tiny_pipeline(adapter=False).encode
    board = Board(pipe)
    board.draw()
    assert "tiny has no adapter and reads no reference" in board.notes.value


def test_show_gives_widget_still_and_text(pipe, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **options: shown.append(bundle))
    board = Board(pipe)
    board.show()
    (bundle,) = shown
    assert "strength 1" in bundle["text/plain"] and bundle["image/png"]
    assert any("widget-view" in kind for kind in bundle)


def test_with_a_real_pipeline_strength_0_is_the_picture_without():
    board = Board(tiny_pipeline())
    board.draw()
    shown = board.shown
    assert shown.with_reference.tobytes() != shown.without.tobytes()
    board.controls["strength"].value = 0
    assert board.shown.with_reference.tobytes() == board.shown.without.tobytes() == shown.without.tobytes()


# The picker


def upload(picker: ReferencePicker, picture: Image.Image | bytes) -> None:
    data = picture if isinstance(picture, bytes) else png(picture)
    picker.uploaded({"new": ({"name": "x.png", "content": memoryview(data)},)})


@pytest.fixture
def picker() -> ReferencePicker:
    picker = ReferencePicker(0, lambda: picker.changes.append(picker.title))
    picker.changes = []
    return picker


def test_samples_show_their_own_pictures(picker):
    pictures = [f".snapref-choice-{i} {{ background-image: url(data:image/png;base64," for i in range(12)]
    assert all(picture in style() for picture in pictures)
    assert picker.buttons[5].tooltip == "orange hair, spiky hair, dress"


def test_an_upload_becomes_the_reference(picker):
    upload(picker, Image.new("RGB", (40, 60), "blue"))
    assert picker.picture.size == (40, 60) and picker.title == "your picture" and len(picker.changes) == 1


def test_a_file_that_is_no_picture_keeps_the_old_one(picker):
    before = picker.picture
    upload(picker, b"<html>")
    assert picker.picture is before and "is not a picture" in picker.problem
    upload(picker, Image.new("RGB", (40, 60)))
    assert picker.problem == ""


def test_both_forms_of_an_upload_are_read():
    assert file_bytes({"a.png": {"metadata": {}, "content": b"seven"}}) == b"seven"
    assert file_bytes(({"name": "a.png", "content": memoryview(b"eight")},)) == b"eight"
    assert file_bytes({}) is file_bytes(()) is None


def test_drop_downs_build_a_character(picker):
    assert picker.person == picker.samples[0].person, "it starts from the sample, untagged hues included"
    picker.choices["hair_colour"].value = "green hair"
    assert picker.title.startswith("green hair") and len(picker.changes) == 1
    first = np.asarray(picker.picture)
    picker.choices["accessory"].value = "witch hat"
    assert (np.asarray(picker.picture) != first).any()
    sizes = {name: len(choice.options) for name, choice in picker.choices.items()}
    assert sizes == {name: len(tags) for name, tags in IDENTITY.items()}
    picker.choose(2)
    assert picker.person == picker.samples[2].person and len(picker.changes) == 3


def test_no_drop_down_is_ever_blank(picker):
    for index in range(12):
        picker.choose(index)
        assert all(choice.index is not None for choice in picker.choices.values())
    box = PromptBox("1girl", lambda: None)
    assert [choice.index for choice in box.choices.values()] == [0, 0, 0, 0]


def test_another_stranger_is_held_out(picker):
    picker.draw_lots()
    assert len(picker.changes) == 1
    assert split_of(picker.person) == "heldout" and "Neither the base nor the adapter" in picker.known.value


# The prompt


@pytest.mark.parametrize(
    ("prompt", "attribute", "tag", "expected"),
    [
        ("1girl, beach, waving", "background", "snow", "1girl, snow, waving"),
        ("1girl, waving", "background", "snow", "1girl, waving, snow"),
        ("1girl, beach, waving", "background", None, "1girl, waving"),
        ("1girl, (beach:1.2), waving", "background", "snow", "1girl, snow, waving"),
        ("1girl, woods, beach,, My Word", "background", "city", "1girl, city, My Word"),
        ("", "pose", "sitting", "sitting"),
        ("", "pose", None, ""),
    ],
)
def test_with_tag(prompt, attribute, tag, expected):
    assert with_tag(prompt, attribute, tag) == expected


def test_scene_only_drops_looks_and_style():
    said = "masterpiece, 1girl, red hair, dress, scar, beach, sand, waving, smile, full body, @inkpress"
    assert scene_only(said) == "masterpiece, 1girl, beach, sand, waving, smile, full body"


def test_text_and_drop_downs_follow_each_other():
    changes = []
    box = PromptBox("1girl, beach, waving", lambda: changes.append(box.prompt))
    assert (box.choices["background"].value, box.choices["expression"].value) == ("beach", "")
    box.choices["background"].value = "snow"
    box.text.value = "1girl, woods, sitting"
    assert box.choices["background"].value == "forest" and box.choices["pose"].value == "sitting"
    assert box.prompt == "1girl, woods, sitting", "what was typed stays as it was typed"
    box.choices["pose"].value = ""
    assert changes == ["1girl, snow, waving", "1girl, woods, sitting", "1girl, woods"]


def test_an_error_keeps_its_own_sentence():
    assert sentence(OSError("disk full")) == "disk full"
    assert sentence(ValueError()) == "ValueError: "


def test_pictures_of_the_board_are_png(board):
    assert Image.open(io.BytesIO(board.picture.value)).width > 3 * 2 * 48
