"""Names of tensors: the published list, prefixes, leftovers, and one exception for all that is wrong."""

import pytest
import torch
from anima_golden import FOLDER, TINY, golden, tiny_model

from snapref.anima.model import AnimaDiT
from snapref.config import BASE
from snapref.files.keys import (
    KeyMismatch,
    block_count,
    check_keys,
    is_ignorable,
    load_strict,
    official,
    prefix_of,
    shapes,
)


def test_full_size_model_has_exactly_the_published_tensors():
    with torch.device("meta"):
        model = AnimaDiT(BASE)
    lines = (FOLDER / "keys.tsv").read_text().splitlines()
    published = {}
    for name, shape in (line.split("\t") for line in lines):
        published[name.removeprefix("net.")] = tuple(int(n) for n in shape.strip("[]").split(","))
    assert shapes(model.state_dict()) == published
    assert len(published) == 685
    assert sum(t.numel() for t in model.state_dict().values()) == 2_091_068_928
    assert block_count(published) == 28


@pytest.mark.parametrize("prefix", ["net.", "model.diffusion_model.", "diffusion_model.", ""])
def test_every_prefix_and_no_leftovers(prefix):
    ours = tiny_model().state_dict()
    leftovers = {
        "pos_embedder.seq": torch.zeros(1),
        "pos_embedder.dim_spatial_range": torch.zeros(1),
        "blocks.0.self_attn._extra_state": torch.zeros(1),
        "accum_image_sample_counter": torch.zeros(1),
    }
    file = {prefix + name: t for name, t in (ours | leftovers).items()}
    file |= {"model_sampling.sigmas": torch.zeros(1), "text_encoders.qwen3_06b.transformer.x": torch.zeros(1)}
    assert prefix_of(file) == prefix
    assert official(file).keys() == ours.keys()


def test_what_is_ignored_is_named_exactly():
    assert not is_ignorable("blocks.0.self_attn.q_proj.weight")
    assert not is_ignorable("pos_embedder")


def test_one_exception_lists_everything():
    tensors = dict(official(golden("tiny_anima_state_dict")))
    del tensors["x_embedder.proj.1.weight"], tensors["blocks.1.mlp.layer1.weight"]
    tensors["surprise"] = torch.zeros(1)
    tensors["t_embedding_norm.weight"] = torch.zeros(7)
    model = AnimaDiT(TINY)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(KeyMismatch) as caught:
        load_strict(model, tensors, "broken.safetensors")
    error = caught.value
    assert error.missing == ["x_embedder.proj.1.weight", "blocks.1.mlp.layer1.weight"]
    assert error.unexpected == ["surprise"]
    assert error.misshaped == ["t_embedding_norm.weight is (7,), should be (96,)"]
    for word in (
        "broken.safetensors",
        "2 missing",
        "1 unexpected",
        "1 of another shape",
        "surprise",
        "(96,)",
    ):
        assert word in str(error)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items()), (
        "changed in spite of it"
    )


def test_a_long_list_is_shortened_in_words_only():
    with pytest.raises(KeyMismatch) as caught:
        check_keys({f"block.{i}": (1,) for i in range(100)}, {}, "empty.safetensors")
    assert len(caught.value.missing) == 100
    assert "100 missing" in str(caught.value) and "and 92 more" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_blocks_are_counted_not_assumed():
    assert block_count(["blocks.0.x", "blocks.51.y", "llm_adapter.blocks.60.z"]) == 52
    assert block_count(["x_embedder.proj.1.weight"]) == 0
