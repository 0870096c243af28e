"""Fetching the published files from a stand-in of the hub: notice, resume, checks, every way to fail."""

import errno
import hashlib

import pytest
import torch
from files_case import comfyui_folder, write_base
from safetensors.torch import save

from snapref.files.download import ANIMA, LICENCE, DownloadError, Remote, download_anima, fetch_one

CONTENT = save({"a": torch.zeros(160)})
REMOTE = Remote("them/model", "split_files/vae/vae.safetensors", "vae/vae.safetensors", len(CONTENT) - 8,
                hashlib.sha256(CONTENT).hexdigest())  # fmt: skip


class Hub:
    """Writes the first bytes, and fails as often as told, before it gives the whole file."""

    def __init__(self, content: bytes = CONTENT, failures: tuple[Exception, ...] = ()):
        self.content, self.failures, self.calls, self.resumed = content, list(failures), [], []

    def __call__(self, repository, path, local_dir):
        self.calls.append((repository, path))
        part = local_dir / "part"
        self.resumed.append(part.stat().st_size if part.exists() else 0)
        if self.failures:
            part.write_bytes(self.content[:10])
            raise self.failures.pop(0)
        file = local_dir / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.content)
        part.unlink(missing_ok=True)
        return str(file)


class ConnectError(Exception):
    pass


def test_everything_once(tmp_path):
    hub, said = Hub(), []
    plain = tuple(Remote(r.repository, r.path, r.place) for r in ANIMA)
    places = download_anima(tmp_path, plain, said.append, hub)
    assert said == [LICENCE] and "CircleStone non-commercial" in LICENCE
    assert hub.calls == [(r.repository, r.path) for r in ANIMA]
    assert all((tmp_path / r.place).read_bytes() == CONTENT for r in ANIMA)
    assert places.base == tmp_path / ANIMA[0].place and places.tokenizers[1] == tmp_path / "tokenizers/t5"
    download_anima(tmp_path, plain, said.append, hub)  # nothing is missing: nothing fetched, nothing said
    assert len(said) == 1 and len(hub.calls) == len(ANIMA)


def test_only_what_is_missing(tmp_path):
    """Given files, and what a ComfyUI folder has, are not fetched; the rest goes where ComfyUI has it."""
    plain = tuple(Remote(r.repository, r.path, r.place) for r in ANIMA)
    root, hub = comfyui_folder(tmp_path / "comfy"), Hub()
    (root / "models/vae/qwen_image_vae.safetensors").unlink()
    places = download_anima(root, plain, lambda text: None, hub)
    assert hub.calls == [(ANIMA[2].repository, ANIMA[2].path)]
    assert places.vae == root / "models/vae/qwen_image_vae.safetensors" and places.vae.read_bytes() == CONTENT
    assert places.base == root / "models/diffusion_models/anima-base-v1.0.safetensors"
    assert not (root / "models/.snapref-partial").exists()
    base, hub = write_base(tmp_path / "own.safetensors"), Hub()
    places = download_anima(tmp_path / "new", plain, lambda text: None, hub, base=base, tokenizers=("q", "t"))
    assert places.base == base and [path for _, path in hub.calls] == [r.path for r in ANIMA[1:3]]


def test_a_file_cut_short_is_fetched_again(tmp_path):
    plain = [Remote(r.repository, r.path, r.place) for r in ANIMA]
    place = tmp_path / ANIMA[0].place
    place.parent.mkdir()
    place.write_bytes(CONTENT[:100])
    download_anima(tmp_path, plain, lambda text: None, Hub())
    assert place.read_bytes() == CONTENT


def test_the_notice_comes_before_the_first_byte(tmp_path):
    order = []
    with pytest.raises(DownloadError):
        download_anima(tmp_path, [REMOTE], lambda text: order.append("notice"), Hub(failures=(ConnectError(),)))
    assert order == ["notice"]


def test_the_published_sums():
    sums = {r.place.rpartition("/")[2]: r.sha256 for r in ANIMA if r.sha256}
    assert {name: value[:8] for name, value in sums.items()} == {
        "anima-base-v1.0.safetensors": "bd43b7cf", "qwen_3_06b_base.safetensors": "cd2a5120",
        "qwen_image_vae.safetensors": "a70580f0",
    }  # fmt: skip
    assert all(len(value) == 64 for value in sums.values())


def test_no_network_says_which_file_to_put_where(tmp_path):
    by_hand = rf"put split_files/vae/vae.safetensors of the repository them/model into {tmp_path}/vae and load again"
    with pytest.raises(DownloadError, match=rf"vae.safetensors could not be fetched \(no connection\); {by_hand}"):
        fetch_one(REMOTE, tmp_path, Hub(failures=(ConnectError("no route"),)))


def test_interrupted_and_resumed(tmp_path):
    hub = Hub(failures=(ConnectError(),))
    with pytest.raises(DownloadError):
        fetch_one(REMOTE, tmp_path, hub)
    assert not (tmp_path / REMOTE.place).exists()
    assert fetch_one(REMOTE, tmp_path, hub).read_bytes() == CONTENT
    assert hub.resumed == [0, 10]  # what came the first time was still there
    hub = Hub(failures=(KeyboardInterrupt(),))
    with pytest.raises(KeyboardInterrupt):
        fetch_one(REMOTE, tmp_path / "other", hub)


@pytest.mark.parametrize("content, words", [
    (b"x" * len(CONTENT), "has sha256 .*… was published; it was damaged on the way or replaced"),
    (CONTENT[:50], "has 50 bytes, 704 were expected; fetch it again"),
])  # fmt: skip
def test_a_wrong_file_is_not_kept(content, words, tmp_path):
    with pytest.raises(DownloadError, match=words):
        fetch_one(REMOTE, tmp_path, Hub(content))
    assert not (tmp_path / REMOTE.place).exists()
    assert fetch_one(REMOTE, tmp_path, Hub()).read_bytes() == CONTENT


def test_disk_full_and_refused(tmp_path):
    with pytest.raises(DownloadError, match=r"\(the disk is full\); put "):
        fetch_one(REMOTE, tmp_path, Hub(failures=(OSError(errno.ENOSPC, "No space left on device"),)))
    gated = type("GatedRepoError", (Exception,), {})
    with pytest.raises(DownloadError, match="asks for an account that accepted its licence"):
        fetch_one(REMOTE, tmp_path, Hub(failures=(gated(),)))
