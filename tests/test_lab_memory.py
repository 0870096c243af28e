"""Notebook 10's figures: bars that add up to the plan, operations counted as by hand, real refusals."""

import dataclasses
import io
import math

import pytest
import torch
from PIL import Image

import snapref
from snapref.config import BASE, NANO
from snapref.files.inspect import inspect
from snapref.lab.memory_view import ACTIVATIONS, CARDS, PHASES, kind_of, memory_bars, stacks
from snapref.lab.minutes import TERA, codec_flops, model_flops, published_share, seconds, work
from snapref.lab.plan_board import HELD, PlanBoard
from snapref.lab.refusals import said
from snapref.lab.rows import at_height
from snapref.lab.tiny_files import write_fp8_nano, write_lora, write_without_header
from snapref.reference.bundle import BundleError
from snapref.sampling.memory import Ask, make_plan


def asks():
    plain = Ask(NANO, torch.float32, NANO.default_size, ref_megapixels=NANO.default_ref_megapixels)
    change = dataclasses.replace
    return [
        plain, change(plain, references=0, adapter=False), change(plain, offload=True), change(plain, fp8=True),
        change(plain, references=3, dtype=torch.float16), *(card.ask() for card in CARDS),
    ]  # fmt: skip


def test_the_kinds_of_a_phase_add_up_to_its_peak():
    for ask in asks():
        plan = make_plan(ask)
        bars = stacks(plan)
        assert set(bars) <= set(PHASES)
        assert {phase: sum(kinds.values()) for phase, kinds in bars.items()} == plan.phases
        assert min(size for kinds in bars.values() for size in kinds.values()) >= 0


def test_parts_are_drawn_while_they_are_there():
    bars = stacks(make_plan(CARDS[0].ask()))
    parts = {part.name: part.bytes for part in make_plan(CARDS[0].ask()).parts}
    assert [phase for phase in PHASES if bars[phase]["text encoder"]] == ["reading the prompt"]
    assert [phase for phase in PHASES if bars[phase]["reference cache"]] == list(PHASES[2:])
    assert bars["drawing"]["adapter"] > bars["decoding"]["adapter"] == parts["adapter, both branches"]
    away = stacks(make_plan(CARDS[2].ask()))
    assert away["drawing"]["model"] < bars["drawing"]["model"] / 4 and not away["drawing"]["codec"]
    # Activations are no leftover of a wrong sum: a larger picture has more of them, and of nothing else.
    large = stacks(make_plan(CARDS[0].ask(size=(1664, 1216))))
    for phase in ("drawing", "decoding"):
        changed = [kind for kind in bars[phase] if large[phase][kind] != bars[phase][kind]]
        assert changed == [ACTIVATIONS] and large[phase][ACTIVATIONS] > bars[phase][ACTIVATIONS]


def test_a_part_without_a_colour_is_named():
    with pytest.raises(KeyError, match="the plan has a part 'a new part' that no kind of the figure takes"):
        kind_of("a new part")


def test_one_panel_for_each_ask():
    drawn = memory_bars({"one": asks()[0], "two": asks()[1]}, [8, 16])
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["one", "two"]
    labels = [tick.get_text() for tick in drawn.axes[1].get_yticklabels()]
    assert labels == ["reading the prompt", "drawing", "decoding"]  # nothing is read without a reference


def by_hand(config, size, ref_tokens=0):
    """Twice the multiplications of one pass, from the widths alone."""
    dit, rows = config.dit, config.text.context_rows
    tokens = math.prod(size) // config.size_step**2
    w, c, r = dit.width, dit.context_width, dit.adaln_rank
    attention = 4 * w * w * tokens + 2 * w * tokens * (tokens + ref_tokens)
    cross = 2 * w * w * tokens + 2 * w * c * rows + 2 * w * rows * tokens
    block = attention + cross + 2 * dit.mlp_ratio * w * w * tokens + 3 * (w * r + 3 * w * r)
    ends = tokens * dit.patch**2 * w * (dit.latent_channels + 1 + dit.latent_channels)
    once = w * w + 3 * w * w + (w * r + 2 * w * r)
    return 2 * (dit.blocks * block + ends + once)


@pytest.mark.parametrize("config", [NANO, BASE], ids=["nano", "anima"])
@pytest.mark.parametrize("ref_tokens", [0, 96])
def test_operations_are_those_of_the_formula(config, ref_tokens):
    size = (128, 96)
    assert model_flops(config, size, ref_tokens) == by_hand(config, size, ref_tokens)


def test_work_and_seconds():
    plain, read = work(NANO, reference=False), work(NANO)
    assert plain.reading == 0 and read.reading == model_flops(NANO, NANO.default_size) > 0
    assert plain.steps == 2 * NANO.default_steps * read.reading and read.steps > plain.steps
    assert work(NANO, steps=7).steps * 4 == read.steps
    assert read.codec == codec_flops(NANO, NANO.default_size) and read.total == sum(dataclasses.astuple(read))
    t4, other = CARDS[0], CARDS[3]
    assert seconds(other, read, 0.2) == pytest.approx(2 * seconds(other, read, 0.4))
    expected = (read.reading + read.codec) / 8.1 + read.steps / 65  # fp16 reads in fp32
    assert seconds(t4, read, 0.5) == pytest.approx(2 * expected / TERA)
    assert 0.3 < published_share(work(BASE)) < 0.5


def test_the_board_follows_its_controls_and_says_what_fits():
    board = PlanBoard(NANO, card=4)
    board.show()
    first = board.picture.value
    assert board.status.value.startswith("It fits: 0.") and Image.open(io.BytesIO(first)).width > 500
    board.set(references=3, held="an fp8 file", offload=True)
    ask = board.ask()
    assert (ask.references, ask.fp8, ask.offload) == (3, True, True) and board.picture.value != first
    board.set(references=0)
    assert not board.ask().adapter and "reading the reference" not in board.describe()
    assert set(HELD) == set(board.controls["held"].options)


def test_the_board_says_what_to_lower():
    board = PlanBoard(BASE, card=8)
    assert "needs about" in board.verdict() and "offload=True" in board.verdict()
    board.set(offload=True)
    assert board.status.value.startswith("It fits: ")


def test_sentences_lose_the_folder_and_an_accepted_example_fails(tmp_path):
    path = write_without_header(tmp_path / "silent.safetensors")
    sentence = said(lambda: inspect(tmp_path / "gone.safetensors"), tmp_path)
    assert sentence == "gone.safetensors does not exist; check the path"
    with pytest.raises(AssertionError, match="nothing was refused"):
        said(lambda: inspect(path))


def test_tiny_files_are_what_they_say(tmp_path):
    silent = write_without_header(tmp_path / "silent.safetensors")
    with pytest.raises(BundleError, match="does not state its place and captions; give place=, captions="):
        snapref.load("nano", adapter=silent)
    lora = write_lora(tmp_path / "a.safetensors")
    assert inspect(lora).facts["blocks"] == NANO.dit.blocks
    pipe = snapref.load("nano", folder=write_fp8_nano(tmp_path / "fp8"))
    assert inspect(tmp_path / "fp8" / "base.safetensors").facts["quantised"] == "plain fp8"
    assert pipe.add_lora(lora) == "a"


def test_rows_have_one_height():
    for size in ((96, 128), (832, 1216)):
        picture = at_height(Image.new("RGB", size), 256)
        assert picture.height == 256 and abs(picture.width / 256 - size[0] / size[1]) < 0.01
