"""The budget counts every weight once, and its figure and table say what it counted."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from snapref.config import BASE, NANO
from snapref.lab.budget_view import IN_A_BLOCK, budget, budget_lines, budget_picture, part_of
from snapref.lab.model_map import model_map


def test_full_size_to_the_last_weight():
    counts = budget(BASE)
    assert sum(counts.values()) == 2_091_068_928
    assert sum(counts[part] for part in IN_A_BLOCK.values()) == 28 * 69_206_528
    assert counts["self-attention"] == 28 * 16_777_472 and counts["AdaLN-LoRA"] == 28 * 6_291_456
    assert sum(count for part, count in counts.items() if part.startswith("adapter")) == 134_663_680
    assert counts["sigma norm"] == 2048 and counts["final layer"] == 1_703_936


@settings(max_examples=10, deadline=None)
@given(heads=st.integers(1, 3), blocks=st.integers(1, 3), rank=st.integers(1, 9))
def test_any_size_is_counted_by_its_formula(heads, blocks, rank):
    dit = dataclasses.replace(NANO.dit, width=12 * heads, heads=heads, blocks=blocks, adaln_rank=rank)
    width, counts = dit.width, budget(dataclasses.replace(NANO, dit=dit))
    assert counts["MLP"] == blocks * 8 * width**2
    assert counts["AdaLN-LoRA"] == blocks * 3 * rank * (width + 3 * width)
    assert counts["self-attention"] == blocks * (4 * width**2 + 2 * dit.head_dim)


def test_without_text_there_is_no_adapter():
    counts = budget(dataclasses.replace(NANO, text=None))
    assert not [part for part in counts if part.startswith("adapter")]


def test_a_weight_of_no_part_is_named():
    with pytest.raises(ValueError, match="the weight blocks.0.other.weight belongs to no part of the budget"):
        part_of("blocks.0.other.weight")


def test_table_and_figures_show_what_was_counted():
    counts = budget(NANO)
    lines = budget_lines(counts).splitlines()
    assert len(lines) == len(counts) + 2
    assert f"{counts['MLP']:,}" in lines[list(counts).index("MLP")]
    assert lines[-1].split()[1] == f"{sum(counts.values()):,}"
    for config in (NANO, BASE):
        texts = [text.get_text() for text in budget_picture(config).axes[0].texts]
        assert any(text.startswith(f"{config.dit.blocks} blocks") for text in texts)
        assert isinstance(model_map(config), Figure)


def test_map_names_the_sizes():
    texts = "\n".join(text.get_text() for text in model_map(BASE).axes[0].texts)
    assert "28 ×" in texts and "2048" in texts and "512 rows" in texts
