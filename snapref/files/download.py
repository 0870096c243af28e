"""Fetching Anima's published files: a notice first, then each file once, resumed, checked, moved into place.

huggingface_hub does the transfer, its progress bar and its resuming; sizes and checksums are the published ones.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from snapref.files.broken import WeightsError
from snapref.files.places import Places

REPOSITORY = "circlestone-labs/Anima"
LICENCE = (
    "Anima's weights are under the CircleStone non-commercial licence (and the NVIDIA Open Model License for what they "
    f"derive from); read it at the repository {REPOSITORY} before you use them or their pictures. snapref's own "
    "licence does not cover them."
)
HEADER_ROOM = 1 << 20  # bytes by which a file may exceed its tensors


class DownloadError(WeightsError):
    """A file that could not be fetched, in one sentence that says where to put it by hand."""


@dataclass(frozen=True)
class Remote:
    """A file of a repository. tensors: bytes of its tensors, 0 if not stated; sha256: None if none is published."""

    repository: str
    path: str
    place: str  # below the folder
    tensors: int = 0
    sha256: str | None = None


ANIMA = (
    Remote(
        REPOSITORY, "split_files/diffusion_models/anima-base-v1.0.safetensors",
        "diffusion_models/anima-base-v1.0.safetensors", 4_182_137_856,
        "bd43b7cffe1ed1153d9c41e7beb2f18cb1273eafbaa3af3edd6a173dc90a006e",
    ),
    Remote(
        REPOSITORY, "split_files/text_encoders/qwen_3_06b_base.safetensors",
        "text_encoders/qwen_3_06b_base.safetensors", 1_192_099_840,
        "cd2a512003e2f9f3cd3c32a9c3573f820bb28c940f73c57b1ddaa983d9223eba",
    ),
    Remote(
        REPOSITORY, "split_files/vae/qwen_image_vae.safetensors",
        "vae/qwen_image_vae.safetensors", 253_785_062,
        "a70580f0213e67967ee9c95f05bb400e8fb08307e017a924bf3441223e023d1f",
    ),
    *(Remote("Qwen/Qwen3-0.6B", name, f"tokenizers/qwen/{name}")
      for name in ("tokenizer_config.json", "vocab.json", "merges.txt")),
    *(Remote("google-t5/t5-base", name, f"tokenizers/t5/{name}")
      for name in ("tokenizer_config.json", "tokenizer.json")),
)  # fmt: skip


def default_folder() -> Path:
    return Path.home() / ".cache" / "snapref" / "anima"


def download_anima(
    folder: str | Path | None = None, files: Sequence[Remote] = ANIMA, say: Callable[[str], None] | None = None,
    fetch: Callable[..., str] | None = None,
) -> Places:
    """Fetches what is missing below `folder` (None: `default_folder`) and returns where everything lies.

    say: takes the licence notice before the first byte (None: standard error). fetch: huggingface_hub's
    hf_hub_download, or what stands in for it.
    Raises DownloadError; what was fetched so far stays, and the next call goes on from there.
    """
    folder = default_folder() if folder is None else Path(folder).expanduser()
    missing = [remote for remote in files if not (folder / remote.place).is_file()]
    if missing:
        (say or tell)(LICENCE)
    for remote in missing:
        fetch_one(remote, folder, fetch)
    return Places(
        folder / ANIMA[0].place, folder / ANIMA[1].place, folder / ANIMA[2].place,
        (folder / "tokenizers/qwen", folder / "tokenizers/t5"),
    )  # fmt: skip


def fetch_one(remote: Remote, folder: Path, fetch: Callable[..., str] | None = None) -> Path:
    """One file, fetched aside, checked, and moved to its place."""
    if fetch is None:
        from huggingface_hub import hf_hub_download as fetch

    place, aside = folder / remote.place, folder / ".partial"
    by_hand = f"put {remote.path} of the repository {remote.repository} into {place.parent} and load again"
    try:
        aside.mkdir(parents=True, exist_ok=True)
        fetched = Path(fetch(remote.repository, remote.path, local_dir=aside))
    except KeyboardInterrupt:
        raise
    except Exception as error:  # of whichever HTTP library the hub's client uses today
        raise DownloadError(f"{place.name} could not be fetched ({reason(error)}); {by_hand}") from error
    try:
        check(fetched, remote)
    except DownloadError:
        fetched.unlink()
        raise
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(fetched, place)
    return place


def reason(error: Exception) -> str:
    """Why a transfer failed, in the first line of a person's words."""
    if isinstance(error, OSError) and error.errno == 28:
        return "the disk is full"
    kind = type(error).__name__
    if any(sign in kind for sign in ("Connect", "Timeout", "Offline", "LocalEntryNotFound", "gaierror")):
        return "no connection"
    if "Gated" in kind or "RepositoryNotFound" in kind:
        return "the repository asks for an account that accepted its licence"
    text = (str(error).splitlines() or [""])[0]
    return f"{kind}: {text}" if text else kind


def check(file: Path, remote: Remote) -> None:
    """Raises DownloadError where size or sha256 are not the published ones."""
    size = file.stat().st_size
    if remote.tensors and not remote.tensors <= size <= remote.tensors + HEADER_ROOM:
        raise DownloadError(f"{file.name} has {size:,} bytes, {remote.tensors:,} were expected; fetch it again")
    if remote.sha256 and (found := sha256(file)) != remote.sha256:
        raise DownloadError(
            f"{file.name} has sha256 {found[:12]}…, {remote.sha256[:12]}… was published; it was damaged on the way or "
            "replaced: fetch it again, and do not use it otherwise"
        )


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    size = file.stat().st_size
    with file.open("rb") as data, tqdm(
        total=size, unit="B", unit_scale=True, desc=f"checking {file.name}", disable=size < 1 << 24
    ) as bar:
        while part := data.read(1 << 22):
            digest.update(part)
            bar.update(len(part))
    return digest.hexdigest()


def tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)
