"""From prompt to context by ComfyUI's rules: weights, two tokenizers, two models, zero rows."""

import dataclasses
import json
import math
import os
from pathlib import Path

import pytest
import torch
from anima_golden import FOLDER, TINY, apart, golden, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from text_case import PROMPTS, QWEN_PAD, language_model, tokenizers

from snapref.anima.prompt import weighted_segments
from snapref.anima.text import TextEncoder, contexts
from snapref.config import BASE

BESIDE = Path(__file__).parents[2] / "shared" / "tokenizers"
TOKENIZERS = Path(os.environ.get("SNAPREF_TOKENIZERS", BESIDE))
ROWS = 40


@pytest.mark.parametrize(
    "prompt, segments",
    [
        ("", []),
        ("()", []),
        ("1girl, solo", [("1girl, solo", 1.0)]),
        ("1girl, (smile:1.2), solo", [("1girl, ", 1.0), ("smile", 1.2), (", solo", 1.0)]),
        ("(a)", [("a", 1.1)]),
        ("((a))", [("a", 1.21)]),
        ("(a (b) c:1.5)", [("a ", 1.5), ("b", 1.65), (" c", 1.5)]),
        (
            "(a (b:1.5) c:1.2)",
            [("a ", 1.2), ("b", 1.5), (" c", 1.2)],
        ),  # a number replaces
        ("(a:b:0.5)", [("a:b", 0.5)]),
        ("(a:-1)", [("a", -1.0)]),
        ("(a:b)", [("a:b", 1.1)]),
        ("(a:nan)", [("a:nan", 1.1)]),
        ("(:2)", [(":2", 1.1)]),
        ("[a], {b}", [("[a], {b}", 1.0)]),
        (r"kaguya \(snowbreak\)", [("kaguya (snowbreak)", 1.0)]),
        (r"(a \(b\):1.3)", [("a (b)", 1.3)]),
        ("(a", [("(a", 1.0)]),
        ("a) (b)", [("a) (b)", 1.0)]),
        ("a (b", [("a ", 1.0), ("(b", 1.0)]),
    ],
)
def test_prompt_weights(prompt, segments):
    found = weighted_segments(prompt)
    assert [text for text, _ in found] == [text for text, _ in segments]
    assert [weight for _, weight in found] == pytest.approx([weight for _, weight in segments])


@pytest.fixture(scope="module")
def encoder():
    config = dataclasses.replace(TINY.text, context_rows=ROWS, qwen_pad_id=QWEN_PAD)
    return TextEncoder(language_model(), *tokenizers(), tiny_model().llm_adapter, config)


def test_tokens_of_segments(encoder):
    tokens = encoder.tokenize("1girl, (smile:1.2), solo")
    qwen, t5 = encoder.qwen_tokenizer, encoder.t5_tokenizer
    parts = ["1girl, ", "smile", ", solo"]
    assert tokens.qwen_ids == sum((qwen(p, add_special_tokens=False).input_ids for p in parts), [])
    by_part = [t5(p, add_special_tokens=False).input_ids for p in parts]
    assert tokens.t5_ids == [*sum(by_part, []), 1]
    weights = [w for ids, w in zip(by_part, (1.0, 1.2, 1.0), strict=True) for _ in ids]
    assert tokens.t5_weights == [*weights, 1.0]
    assert "(" not in t5.decode(tokens.t5_ids) and "1.2" not in qwen.decode(tokens.qwen_ids)


def test_empty_prompt_is_one_padding_token_and_one_end(encoder):
    tokens = encoder.tokenize("")
    assert (tokens.qwen_ids, tokens.t5_ids, tokens.t5_weights) == ([QWEN_PAD], [1], [1.0])
    assert encoder([""]).shape == (1, ROWS, 48)


def test_context_rows_weights_and_zeros(encoder):
    plain, weighted = encoder(["smile"]), encoder(["(smile:1.5)"])
    rows = len(encoder.tokenize("smile").t5_ids)
    assert plain.shape == (1, ROWS, 48) and not plain.requires_grad
    assert plain[0, :rows].abs().sum(-1).all() and not plain[0, rows:].any()
    assert apart(weighted[0, : rows - 1], 1.5 * plain[0, : rows - 1]) < 1e-6
    assert apart(weighted[0, rows - 1], plain[0, rows - 1]) < 1e-6, "the end token has weight 1"


def test_each_prompt_is_encoded_by_itself(encoder):
    together = encoder(PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        assert torch.equal(together[i : i + 1], encoder([prompt]))


def test_an_empty_prompt_is_heard_by_comfyuis_rule(encoder):
    """One padding token is read like any other; the trainers' rule, a masked source, is far from it."""
    source = encoder.qwen(torch.tensor([[QWEN_PAD]])).last_hidden_state
    context, ids = encoder([""]), torch.tensor([[1]])
    assert apart(context[:, :1], encoder.adapter(ids, source)) < 1e-6 and not context[:, 1:].any()
    masked = encoder.adapter(ids, source, source_mask=torch.zeros(1, 1))
    assert apart(context[:, :1], masked) > 0.01
    assert torch.equal(encoder(["()"]), context), "parentheses around nothing are nothing"


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS, ROWS + 1])
def test_zero_rows_up_to_the_usual_number(encoder, rows):
    """Just below, at and above it; never cut, never more than needed."""
    words = "a" * (rows - 2)  # each an unknown letter of its own, one in front for the "▁", one end token
    while (found := len(encoder.tokenize(words).t5_ids)) != rows:
        words = words[: rows - found] if found > rows else words + " a"
    context = encoder([words])
    assert context.shape[1] == max(rows, ROWS)
    assert context[0, :rows].abs().sum(-1).all() and not context[0, rows:].any()


def test_a_prompt_of_two_thousand_tokens_is_read_without_a_word(encoder, capfd, caplog):
    """transformers would warn of T5's 512, which is no limit where only its ids are used."""
    encoder.t5_tokenizer.model_max_length = 512
    prompt = ", ".join(["1girl, beach, waving"] * 260)
    tokens = encoder.tokenize(prompt)
    assert len(tokens.t5_ids) > 2000
    assert encoder([prompt]).shape == (1, len(tokens.t5_ids), 48)
    assert not caplog.records and capfd.readouterr().err == ""


@given(st.text(alphabet="ab ,:()\\[]1.2-", max_size=30))
def test_any_prompt_is_read(prompt):
    """Nothing is an error, every weight is a number, and only parentheses, numbers and escapes go."""
    segments = weighted_segments(prompt)
    assert all(text and math.isfinite(weight) for text, weight in segments)
    letters = [c for c in prompt if c in "ab,[]"]
    assert [c for text, _ in segments for c in text if c in "ab,[]"] == letters


@given(st.text(alphabet="ab ,:[]1.", max_size=30))
def test_without_parentheses_a_prompt_is_one_segment_as_it_is(prompt):
    assert weighted_segments(prompt) == ([(prompt, 1.0)] if prompt else [])


@given(st.text(alphabet="ab ,:()1.", max_size=30))
def test_escaped_parentheses_are_letters(prompt):
    escaped = prompt.replace("(", "\\(").replace(")", "\\)")
    assert weighted_segments(escaped) == ([(prompt, 1.0)] if prompt else [])


def test_long_prompts_stay_whole(encoder):
    long = ", ".join(["1girl, beach, waving"] * 30)
    rows = len(encoder.tokenize(long).t5_ids)
    assert rows > 200
    assert encoder([long]).shape == (1, rows, 48)
    with pytest.raises(ValueError, match=f"prompts of .{ROWS}, {rows}. context rows do not fit one batch"):
        encoder(["smile", long])


def test_training_path_equals_the_encoder(encoder):
    """A padded batch through `contexts` is what each prompt gets alone, and the adapter gets a gradient."""
    tokens = [encoder.tokenize(prompt) for prompt in PROMPTS if "(" not in prompt and prompt]
    width = max(len(t.t5_ids) for t in tokens), max(len(t.qwen_ids) for t in tokens)
    ids, ids_mask, source, source_mask = [], [], [], []
    for t in tokens:
        with torch.no_grad():
            hidden = encoder.qwen(input_ids=torch.tensor([t.qwen_ids])).last_hidden_state[0]
        pad = width[0] - len(t.t5_ids), width[1] - len(t.qwen_ids)
        ids.append(torch.tensor(t.t5_ids + [0] * pad[0]))
        ids_mask.append(torch.arange(width[0]) < len(t.t5_ids))
        source.append(torch.nn.functional.pad(hidden, (0, 0, 0, pad[1]), value=9.0))
        source_mask.append(torch.arange(width[1]) < len(t.qwen_ids))
    adapter = tiny_model().llm_adapter.requires_grad_(True)
    batch = contexts(adapter, *(torch.stack(x) for x in (ids, ids_mask, source, source_mask)), rows=ROWS)
    alone = encoder([prompt for prompt in PROMPTS if "(" not in prompt and prompt])
    assert apart(batch, alone) < 1e-5
    batch.square().sum().backward()
    assert all(p.grad is not None for p in adapter.parameters())


def test_weighted_rows_equal_comfyui():
    io, adapter = golden("adapter_io"), tiny_model().llm_adapter
    answer = adapter(io["one.ids"], io["one.source"]) * io["one.weights"][:, None]
    padded = torch.nn.functional.pad(answer, (0, 0, 0, 7))
    assert apart(padded, io["one.out_weighted_padded512_first16"]) < 1e-5


def test_language_model_golden():
    from transformers import Qwen3Config, Qwen3Model

    tensors = dict(golden("tiny_qwen3"))
    io = {name: tensors.pop(name) for name in list(tensors) if name.startswith("io.")}
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    rope = {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    config = Qwen3Config(vocab_size=64, head_dim=16, intermediate_size=48, rms_norm_eps=1e-6, **size, **rope)
    qwen = Qwen3Model(config).eval()
    qwen.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items()})
    with torch.no_grad():
        assert apart(qwen(input_ids=io["io.ids"]).last_hidden_state, io["io.last_hidden_state"]) < 1e-5
        single = qwen(input_ids=io["io.ids"][:, :1]).last_hidden_state
        assert apart(single, io["io.single_token_last_hidden_state"]) < 1e-5


def test_ids_equal_comfyuis():
    if not TOKENIZERS.is_dir():
        pytest.skip(
            f"no tokenizer data in {TOKENIZERS}: set SNAPREF_TOKENIZERS to a folder with qwen/ and t5/"
        )
    from transformers import AutoTokenizer

    qwen, t5 = (
        AutoTokenizer.from_pretrained(TOKENIZERS / name, local_files_only=True) for name in ("qwen", "t5")
    )
    encoder = TextEncoder(None, qwen, t5, None, BASE.text)
    for case in json.loads((FOLDER / "tokens_comfy.json").read_text()):
        tokens = encoder.tokenize(case["prompt"])
        assert tokens.qwen_ids == case["qwen3_ids"], case["prompt"]
        assert tokens.t5_ids == case["t5_ids"], case["prompt"]
        assert tokens.t5_weights == pytest.approx(case["t5_weights"]), case["prompt"]
