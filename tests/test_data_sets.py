"""Pictures drawn, prepared, merged and read: by one process or two, after a kill, and with a shard torn or gone."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from data_case import CATALOG, prepared, rendered
from PIL import Image
from transformers import Qwen3Model
from typer.testing import CliRunner

import snapref
from snapref.anima.codec import NanoCodec
from snapref.anima.text import LLMAdapter
from snapref.cli import app
from snapref.config import BASE, NANO
from snapref.sampling.settings import Settings
from snapref.training import adapter_task, datagen, prepare
from snapref.training.adapter_task import AdapterTask
from snapref.training.config import load_run_config
from snapref.training.frozen import FrozenParts
from snapref.training.loop import train
from snapref.training.manifest import read_manifest
from snapref.training.merge import folder_and_weight, merge
from snapref.training.prepared import PreparedPairs
from snapref.training.records import read_pictures
from snapref.training.shards import ShardError, sha256_of
from snapref.training.sources import PreparedSource


@pytest.fixture(scope="module")
def pipe():
    return snapref.load("nano", adapter=False, device="cpu")


@pytest.fixture(scope="module")
def sets(pipe, tmp_path_factory):
    """Three small prepared sets: two to train on, one of strangers."""
    root = tmp_path_factory.mktemp("sets")
    for name, seed, split in (("a", 3, "train"), ("b", 4, "train"), ("strangers", 5, "heldout")):
        rendered(root / f"{name}-pictures", seed=seed, split=split)
        prepared(root / f"{name}-pictures", root / name, pipe)
    return root


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.png")}


def test_two_processes_draw_what_one_draws_and_nothing_twice(tmp_path):
    whole = rendered(tmp_path / "one")
    whole.write(tmp_path / "two")
    counts = [datagen.datagen(whole, tmp_path / "two", rank=rank, world=2, quiet=True) for rank in (1, 0)]
    assert counts == [8, 16] and not datagen.missing(whole, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two") and len(files(tmp_path / "one")) == 24
    assert datagen.datagen(whole, tmp_path / "two", quiet=True) == 0


def test_after_a_kill_only_what_is_missing_is_drawn(tmp_path, monkeypatch):
    made = datagen.new_manifest("nano", CATALOG, 24, seed=3, batch=8)
    made.write(tmp_path)
    real, drawn = datagen.render_picture, []

    def dying(manifest, picture):
        drawn.append(picture.number)
        if len(drawn) == 13:
            raise KeyboardInterrupt
        return real(manifest, picture)

    monkeypatch.setattr(datagen, "render_picture", dying)
    with pytest.raises(KeyboardInterrupt):
        datagen.datagen(made, tmp_path, quiet=True)
    (tmp_path / "pictures/.000001.77").mkdir()  # as a kill that nothing can clean up after leaves it
    datagen.clear(tmp_path)
    assert sorted(files(tmp_path)) == [datagen.file_of(made, n) for n in range(8)]
    with pytest.raises(ValueError, match="16 of the 24 pictures of .* are not there .*0000008.png, .*; run snapref"):
        read_pictures(tmp_path, CATALOG)
    drawn.clear()
    drawn.extend([0] * 20)  # the trap is over
    assert datagen.datagen(made, tmp_path, quiet=True) == 16 and drawn[20:] == list(range(8, 24))
    rendered(tmp_path / "whole")
    assert files(tmp_path / "whole") == {k: v for k, v in files(tmp_path).items() if not k.startswith("whole")}


def test_a_full_disk_is_told_in_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    made = datagen.new_manifest("nano", CATALOG, 12, batch=6)
    made.write(tmp_path)
    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="batch 0 cannot be written to .*No space left.*make room and run again"):
        datagen.datagen(made, tmp_path, quiet=True)
    assert not list((tmp_path / "pictures").iterdir())


def test_from_nothing_to_batches_by_the_commands(tmp_path):
    run = CliRunner().invoke
    pictures, out = tmp_path / "gen", tmp_path / "prep"
    options = ["--pictures", "8", "--per-character", "4", "--batch", "4", "--steps", "2", "--quiet"]
    done = run(app, ["datagen", "--model", "nano", "--out", str(pictures), *options])
    assert done.exit_code == 0, done.output
    path = sorted(pictures.rglob("*.png"))[5]
    told, made = datagen.read_picture_record(path), read_manifest(pictures)
    assert told["tags"] == dict(made.picture(5).tags) and told["seed"] == Settings.from_png(path).seed
    again = snapref.load("nano", adapter=False)([made.prompt(made.picture(n)) for n in range(4, 8)],
                                                settings=Settings.from_png(path), quiet=True)
    assert np.array_equal(np.asarray(again.images[1]), np.asarray(Image.open(path)))

    done = run(app, ["prepare", str(pictures), "--out", str(out), "--verify", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pairs"] == 24  # 8 targets with the 3 other pictures of their character
    ready = PreparedPairs(out)
    assert len(ready) == 24 and ready.model == "nano" and set(ready.captions) == {"cs", "char"}
    assert run(app, ["merge", f"{out}:0.8", "--out", str(tmp_path / "mix")]).exit_code == 2


def test_a_batch_holds_what_the_codec_and_the_text_path_give(sets, pipe):
    plan = prepare.new_plan(read_pictures(sets / "a-pictures", CATALOG), sets / "a-pictures", pipe.config)
    ready = PreparedPairs(sets / "a")
    kind, numbers = next(iter(ready.buckets.items()))
    batch = ready.batch(numbers[:3])
    assert batch["latent"].shape == (3, 16, 1, *kind[:2]) and batch["reference"].shape == (3, 16, 1, *kind[2:])
    assert batch["context"].shape == (3, NANO.text.context_rows, NANO.dit.context_width)
    assert {t.dtype for n, t in batch.items() if n != "reads"} == {torch.float32} and batch["reads"].dtype == torch.bool
    for i, number in enumerate(numbers[:3]):
        pair = plan.pairs[number]
        for name, picture in (("latent", pair.target), ("reference", pair.reference)):
            pixels = np.asarray(Image.open(plan.folder / plan.pictures.records[picture].file))
            true = pipe.to_latent(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255)
            torch.testing.assert_close(batch[name][i], true[0], atol=4e-3, rtol=2e-3)  # fp16 on disk
        for name, prompt in (("context", pair.prompt), ("reference_context", plan.captions[pair.mode])):
            torch.testing.assert_close(batch[name][i], pipe.text([prompt])[0], atol=4e-3, rtol=2e-3)
        assert bool(batch["reads"][i]) == pair.reads
    torch.testing.assert_close(ready.empty(), pipe.text([""]), atol=4e-3, rtol=2e-3)
    ready.check_base(pipe.text.adapter)
    with pytest.raises(ValueError, match="was prepared with another base"):
        ready.check_base(torch.nn.Linear(2, 2))
    ready.verify()


def test_many_prompts_at_once_are_what_each_is_alone(pipe):
    prompts = ["1girl, beach", "", "1girl, (red hair:1.3), waving, full body, smile"]
    for row, prompt in zip(prepare.encode_prompts(pipe.text, prompts), prompts, strict=True):
        alone = pipe.text([prompt])[0]
        torch.testing.assert_close(row, alone[: len(row)], atol=1e-5, rtol=1e-4)
        assert not alone[len(row) :].any()
    with pytest.raises(ValueError, match="is longer than the 96 rows of a context; shorten its tags"):
        prepare.encode_prompts(pipe.text, ["red hair, " * 60])


def test_two_processes_prepare_what_one_does_and_a_lost_shard_is_made_again(sets, pipe, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "LATENTS", 7)
    monkeypatch.setattr(prepare, "CONTEXTS", 30)
    pictures = sets / "a-pictures"
    plan = prepared(pictures, tmp_path / "one", pipe)
    out = tmp_path / "two"
    plan.write(out, "a print")
    assert prepare.prepare(plan, out, pipe, rank=1, world=2, quiet=True) > 0
    with pytest.raises(ValueError, match="shards of .* are not made .*run snapref prepare again"):
        prepare.finish(plan, out, pipe)
    assert prepare.prepare(plan, out, pipe, rank=0, world=2, quiet=True) > 0
    prepare.finish(plan, out, pipe)
    index = {name: json.loads((tmp_path / name / "index.json").read_text()) for name in ("one", "two")}
    assert index["one"] == index["two"] and len(index["one"]["latents"]) == 4
    for line in (*index["two"]["latents"], *index["two"]["contexts"]):
        assert sha256_of(out / line["file"]) == line["sha256"] and (out / line["file"]).stat().st_size == line["bytes"]

    shard = out / "latents-00001.safetensors"
    ready, bytes_there = PreparedPairs(out), shard.read_bytes()
    hit = [n for n in range(len(ready)) if 7 <= ready.sets[0].target[n] < 14][:1]
    shard.unlink()
    with pytest.raises(ShardError, match="latents-00001.safetensors is missing; run snapref prepare again"):
        PreparedPairs(out)
    with pytest.raises(ShardError, match="latents-00001.safetensors cannot be read .*remove it and run"):
        ready.batch(hit)
    shard.write_bytes(bytes_there[:-50])
    with pytest.raises(ShardError, match=r"latents-00001.safetensors has .* bytes, the index says .*remove it"):
        PreparedPairs(out)
    shard.write_bytes(bytes_there[:-1] + bytes([bytes_there[-1] ^ 1]))
    with pytest.raises(ShardError, match="latents-00001.safetensors has sha256 .*, the index says"):
        PreparedPairs(out).verify()
    shard.write_bytes(bytes_there[:-50])
    assert prepare.prepare(plan, out, pipe, quiet=True) == 1
    assert shard.read_bytes() == bytes_there
    with pytest.raises(ValueError, match="was begun with another seed"):
        dataclasses.replace(plan, seed=8).write(out, "a print")


def test_held_out_characters_open_only_to_be_watched(sets):
    with pytest.raises(ValueError, match="held-out characters .* which no training may see"):
        PreparedPairs(sets / "strangers")
    watched = PreparedPairs(sets / "strangers", allow=True)
    assert watched.batch(next(iter(watched.buckets.values()))[:2])["reads"].all()
    with pytest.raises(ValueError, match="which no training may see"):
        merge([(sets / "a", 0.8), (sets / "strangers", 0.2)], sets / "bad")


def test_a_mix_gives_each_set_its_share_and_shows_every_pair(sets, tmp_path):
    assert folder_and_weight("real:0.8") == (tmp_path.__class__("real"), 0.8)
    merge([(sets / "a", 0.8), (sets / "b", 0.2)], tmp_path / "mix")
    ready, border = PreparedPairs(tmp_path / "mix"), len(PreparedPairs(sets / "a"))
    assert len(ready) == border + len(PreparedPairs(sets / "b"))
    source = PreparedSource(ready, 4, 0)
    bucket = {n: kind for kind, numbers in ready.buckets.items() for n in numbers}
    batches = [source.order.batch(step) for step in range(3 * len(ready))]
    assert all(len(batch) == 4 and len({bucket[n] for n in batch}) == 1 for batch in batches)
    seen = np.concatenate(batches)
    assert np.mean(seen < border) == pytest.approx(0.8, abs=0.005) and {*seen.tolist()} == {*range(len(ready))}
    last = ready.batch([len(ready) - 1])
    own = PreparedPairs(sets / "b")
    assert torch.equal(last["latent"], own.batch([len(own) - 1])["latent"])


def test_a_mix_by_the_command(sets, tmp_path):
    words = ["merge", f"{sets / 'a'}:3", f"{sets / 'b'}:1", "--out", str(tmp_path / "mix")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and f"a mix of {sets / 'a'} 3, {sets / 'b'} 1" in done.stdout
    ready = PreparedPairs(tmp_path / "mix")
    assert [one.folder.resolve() for one in ready.sets] == [sets / "a", sets / "b"]
    assert ready.weights.tolist() == [0.75, 0.25]
    assert ready.batch(next(iter(ready.buckets.values()))[:2])["latent"].shape[:2] == (2, 16)
    refused = CliRunner().invoke(app, ["merge", f"{sets / 'a'}:-1", str(sets / "b"), "--out", str(tmp_path / "bad")])
    assert refused.exit_code == 2 and "is '-1'; give a positive number" in refused.stderr


def test_training_on_prepared_pairs_calls_no_text_encoder_and_no_codec(sets, tmp_path, monkeypatch):
    called = []
    for owner, name in ((NanoCodec, "encode"), (NanoCodec, "decode"), (FrozenParts, "text"), (LLMAdapter, "forward"),
                        (Qwen3Model, "forward")):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: called.append(name))
    monkeypatch.setattr(adapter_task, "PreparedPairs", PreparedPairs)  # not the tiny ones of other tests
    options, fields = {"data": str(sets / "a"), "gap": 0}, {"batch": 4, "precision": "no"}
    config = load_run_config("nano-v1a", options, steps=3, decay=1, save_every=2, **fields)
    task = AdapterTask(config)
    run = train(task, config, tmp_path)
    assert (run / "export.safetensors").exists() and not called
    task.parts.codec.encode(None)
    assert called == ["encode"]  # they are the ones that would have been called


def test_a_mix_that_makes_no_sense_is_refused(sets, tmp_path):
    with pytest.raises(ValueError, match="is in the mix twice; name it once"):
        merge([(sets / "a", 0.8), (sets / "a", 0.2)], tmp_path / "mix")
    with pytest.raises(ValueError, match="1 prepared set is no mix"):
        merge([(sets / "a", 1.0)], tmp_path / "mix")
    with pytest.raises(ValueError, match="the weight of x is '-1'; give a positive number"):
        folder_and_weight("x:-1")
    with pytest.raises(ValueError, match="has no index.json; give a folder"):
        merge([(sets / "a", 1.0), (tmp_path, 1.0)], tmp_path / "mix")


@pytest.mark.parametrize("config", [NANO, BASE], ids=lambda c: c.name)
def test_buckets_have_the_models_area_and_sizes_it_can_draw(config):
    sizes, area = prepare.buckets(config), config.default_size[0] * config.default_size[1]
    assert config.default_size in sizes
    for height, width in sizes:
        assert height % config.size_step == width % config.size_step == 0
        assert 0.7 * area < height * width <= prepare.SLACK * area
    assert prepare.nearest_bucket(*config.default_size, sizes) == config.default_size
