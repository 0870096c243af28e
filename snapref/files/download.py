"""Fetching Anima's published files: a notice first, then each file once, resumed, checked, moved into place.

huggingface_hub does the transfer and its progress bar; sizes and checksums are the published ones.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from snapref.files.broken import WeightsError, opened
from snapref.files.places import Places, default_folder, find_anima, find_part, find_tokenizers

REPOSITORY = "circlestone-labs/Anima"
LICENCE = (
    "Anima's weights are under the CircleStone non-commercial licence (and the NVIDIA Open Model License for what they "
    f"derive from); read it at the repository {REPOSITORY} before you use them or their pictures. snapref's own "
    "licence does not cover them."
)
HEADER_ROOM = 1 << 20  # bytes by which a file may exceed its tensors
ASIDE = ".snapref-partial"  # below the folder: what is on its way


class DownloadError(WeightsError):
    """A file that could not be fetched, in one sentence that says where to put it by hand."""


@dataclass(frozen=True)
class Remote:
    """A file of a repository. tensors: bytes of its tensors, 0 if not stated; sha256: None if none is published."""

    repository: str
    path: str
    place: str  # below the folder; begins with diffusion_models/, text_encoders/, vae/ or tokenizers/
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
PARTS = {"diffusion_models": "base", "text_encoders": "text_encoder", "vae": "vae", "tokenizers": "tokenizers"}


def from_hub(repository: str, path: str, local_dir: Path, endpoint: str | None = None) -> Path:
    """Fetches a file of a repository into `local_dir`, going on from where an earlier call broke off.

    huggingface_hub's own download throws away what has come when the line breaks, and begins anew in the next
    call: its parts are used here, with a file that stays. endpoint: of the hub, None for the usual one.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    name = path.rpartition("/")[2]
    if isinstance(cached := try_to_load_from_cache(repository, path), str):
        return Path(shutil.copyfile(cached, local_dir / name))
    url, headers = hf_hub_url(repository, path, endpoint=endpoint), build_hf_headers()
    about = get_hf_file_metadata(url, headers=headers)
    version = hashlib.sha256(f"{repository}/{path} {about.etag}".encode()).hexdigest()[:12]
    part = local_dir / f"{name}.{version}"  # what began as another version is not gone on with
    with part.open("ab") as file:
        if about.size is not None and file.tell() > about.size:
            file.truncate(0)
        if file.tell() != about.size:
            http_get(
                url, file, resume_size=file.tell(), headers=headers, expected_size=about.size, displayed_filename=name
            )
    return part


def download_anima(
    folder: str | Path | None = None, files: Sequence[Remote] = ANIMA, say: Callable[[str], None] | None = None,
    fetch: Callable[..., str | Path] = from_hub, **given,
) -> Places:
    """Fetches what is neither given nor below `folder` (None: `default_folder`) and returns where everything lies.

    In a ComfyUI folder the files go where ComfyUI has them, and what is there by any name is not fetched again.
    given: base, text_encoder, vae, tokenizers that need no fetching; None for the others.
    say: takes the licence notice before the first byte (None: standard error). fetch: `from_hub`, or what
    stands in for it.
    Raises DownloadError; what was fetched so far stays, and the next call goes on from there.
    """
    folder = default_folder() if folder is None else Path(folder).expanduser()
    home = folder / "models" if (folder / "models").is_dir() else folder
    places = {part: value for part, value in given.items() if value is not None}
    wanted = [remote for remote in files if part_of(remote) not in places]
    missing = [remote for remote in wanted if not is_whole(home / remote.place)]
    there = {part for part in map(part_of, missing) if is_there(folder, part)}
    missing = [remote for remote in missing if part_of(remote) not in there]
    if missing:
        check_room(missing, home)
        (say or tell)(LICENCE)
    for remote in missing:
        fetch_one(remote, home, fetch)
    shutil.rmtree(home / ASIDE, ignore_errors=True)  # only what the transfer noted for itself is left in it
    for remote in wanted:
        if (part := part_of(remote)) not in there:
            place = home / remote.place
            places[part] = (home / "tokenizers/qwen", home / "tokenizers/t5") if part == "tokenizers" else place
    return find_anima(folder, **places)


def part_of(remote: Remote) -> str:
    return PARTS[remote.place.partition("/")[0]]


def is_whole(place: Path) -> bool:
    """Whether a file is there and, if it is a weight file, can be opened; one cut short is fetched again."""
    if place.suffix != ".safetensors" or not place.is_file():
        return place.is_file()
    try:
        with opened(place):
            return True
    except WeightsError:
        return False


def is_there(folder: Path, part: str) -> bool:
    """Whether a folder has a part under another name or in another layout."""
    try:
        return bool(find_tokenizers(folder) if part == "tokenizers" else find_part(folder, part))
    except WeightsError:
        return False


def check_room(missing: Sequence[Remote], home: Path) -> None:
    """Raises DownloadError where the disk has no room for what is missing."""
    home.mkdir(parents=True, exist_ok=True)
    begun = sum(file.stat().st_size for file in (home / ASIDE).rglob("*") if file.is_file())
    needed, free = sum(remote.tensors for remote in missing) - begun, shutil.disk_usage(home).free
    if needed > free:
        raise DownloadError(
            f"the disk of {home} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are to be fetched; make room, or "
            "give another folder"
        )


def fetch_one(remote: Remote, folder: Path, fetch: Callable[..., str | Path] = from_hub) -> Path:
    """One file, fetched aside, checked, and moved to its place. Raises DownloadError."""
    place, aside = folder / remote.place, folder / ASIDE
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
    if "RemoteProtocol" in kind or "ChunkedEncoding" in kind or "ReadError" in kind or "IncompleteRead" in kind:
        return "the connection broke off"
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
