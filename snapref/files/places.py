"""Which file is which: Anima's files in a ComfyUI folder, a plain folder, or a diffusers repository.

    ComfyUI      models/{diffusion_models,unet,text_encoders,clip,vae,loras}/…     (the program's folder or its models/)
    plain        the files side by side or in folders such as split_files/…; tokenizers in folders of their own
    diffusers    transformer/ text_conditioner/ text_encoder/ vae/ tokenizer/ t5_tokenizer/

A file is known by its header, never by its name; its name decides only between several of one kind. ComfyUI's
tokenizers lie inside the program (comfy/text_encoders), beside its models.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from snapref.files.broken import WeightsError
from snapref.files.inspect import Found, inspect

# The published names, preferred where a folder has several files of a kind (specification section 1).
PUBLISHED = {
    "base": "anima-base-v1.0.safetensors",
    "text_encoder": "qwen_3_06b_base.safetensors",
    "vae": "qwen_image_vae.safetensors",
}
COMFYUI = {
    "base": ("diffusion_models", "unet"),
    "text_encoder": ("text_encoders", "clip"),
    "vae": ("vae",),
}
DIFFUSERS = {"base": ("transformer", "text_conditioner"), "text_encoder": ("text_encoder",), "vae": ("vae",)}
KINDS = {"base": "dit", "text_encoder": "text encoder", "vae": "vae"}
WORDS = {"base": "diffusion model", "text_encoder": "Qwen3 text encoder", "vae": "VAE"}
TOKENIZER_FOLDERS = ("tokenizers", ".", "models/tokenizers", "text_encoders", "clip", "models/text_encoders",
                     "models/clip", "comfy/text_encoders", "../comfy/text_encoders")  # fmt: skip
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
ADAPTERS = ("snapref_v1a", "snapref_v1b", "snapref_v2a_pre1", "snapref_v2a_pre2")  # published, each also as FP8

Source = Path | tuple[Path, ...]  # a file, or the folder or folders of a diffusers repository that hold it


@dataclass(frozen=True)
class Places:
    """Where each part of Anima lies. tokenizers: (Qwen's, T5's), each a JSON file or a folder."""

    base: Source
    text_encoder: Source
    vae: Source
    tokenizers: tuple[Path, Path]


def find_anima(folder: str | Path | None, **given) -> Places:
    """Returns the places of all parts: those `given` (base, text_encoder, vae, tokenizers) as they are.

    Raises WeightsError for a part that is not found or of which there are several, naming the argument to give.
    """
    found = {part: value for part, value in given.items() if value is not None}
    folder = folder_or_default(folder)
    if folder is None:
        if missing := [part for part in (*KINDS, "tokenizers") if part not in found]:
            raise WeightsError(
                f"anima needs the paths of its files: {', '.join(missing)} not given; give them, or folder=, or "
                "download=True"
            )
        return Places(**found)
    for part in KINDS:
        if part not in found:
            found[part] = find_part(folder, part)
    if "tokenizers" not in found:
        found["tokenizers"] = find_tokenizers(folder)
    return Places(**found)


def default_folder() -> Path:
    """Where downloads go if no folder is given."""
    return Path.home() / ".cache" / "snapref" / "anima"


def folder_or_default(folder: str | Path | None) -> Path | None:
    """The folder as a path; None becomes that of downloads, if there is one. Raises WeightsError if it is no folder."""
    if folder is None:
        return default_folder() if default_folder().is_dir() else None
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise WeightsError(f"{folder} is no folder; give the folder that holds Anima's files, or each file by itself")
    return folder


def find_part(folder: Path, part: str) -> Source:
    """The file of a part, or its diffusers folders. Raises WeightsError."""
    parts = [folder / name for name in DIFFUSERS[part]]
    if all((each / "config.json").is_file() and any(each.glob("*.safetensors")) for each in parts):
        return tuple(parts) if len(parts) > 1 else parts[0]
    broken: dict[Path, WeightsError] = {}
    candidates = [f for f in kinds_in(places_of(folder, part), broken) if f.kind == KINDS[part]]
    if part == "base":
        candidates = [f for f in candidates if f.facts["llm_adapter"]]
    for path, error in broken.items():
        if path.name == PUBLISHED[part]:
            raise error
    published = [f for f in candidates if f.path.name == PUBLISHED[part]]
    chosen = published or candidates
    if len(chosen) == 1:
        return chosen[0].path
    if chosen:
        names = ", ".join(sorted(f.path.name for f in chosen))
        raise WeightsError(f"{folder} holds {len(chosen)} files that are a {WORDS[part]}: {names}; give {part}=")
    where = COMFYUI[part][0]
    unread = f" that can be opened ({', '.join(path.name for path in broken)} cannot)" if broken else ""
    raise WeightsError(
        f"{folder} holds no {WORDS[part]}{unread}; put {PUBLISHED[part]} there (in ComfyUI: models/{where}), give "
        f"{part}=, or download=True"
    )


def places_of(folder: Path, part: str) -> list[Path]:
    """The safetensors files among which a part is looked for: ComfyUI's folder for it, else all of a plain one."""
    for models in (folder / "models", folder):
        own = [models / name for name in COMFYUI[part] if (models / name).is_dir()]
        if own:
            return [file for each in own for file in sorted(each.rglob("*.safetensors"))]
    return sorted(f for depth in ("", "*/", "*/*/") for f in folder.glob(f"{depth}*.safetensors"))


def kinds_in(files: Iterable[Path], broken: dict[Path, WeightsError] | None = None) -> list[Found]:
    """What each file is. `broken` takes those that cannot be opened, with the reason."""
    found = []
    for file in files:
        try:
            found.append(inspect(file))
        except WeightsError as error:
            if broken is not None:
                broken[file] = error
    return found


def find_tokenizers(folder: Path) -> tuple[Path, Path]:
    """(Qwen's, T5's) tokenizer of a folder, each told by what it holds. Raises WeightsError."""
    roots = [folder / name for name in TOKENIZER_FOLDERS]
    places = dict.fromkeys(p for root in roots if root.is_dir() for p in (root, *sorted(root.iterdir())))
    kinds = {place: tokenizer_kind(place) for place in places if place.is_dir() or place.suffix == ".json"}
    # Programs have Qwen's later vocabularies and T5's relatives too: the ones with Anima's ids come first.
    qwen = first_of(kinds, "Qwen", b'"151643"', b'"id": 151643')
    t5 = first_of(kinds, "T5", b"<extra_id_99>")
    if qwen is None or t5 is None:
        missing = " and of ".join(name for name, found in (("Qwen", qwen), ("T5", t5)) if found is None)
        raise WeightsError(
            f"{folder} lacks the tokenizer of {missing} (ComfyUI keeps them inside the program, comfy/text_encoders); "
            f"put them into {folder / 'tokenizers'} as folders qwen and t5, or give tokenizers=(qwen, t5) or "
            "download=True"
        )
    return qwen, t5


def tokenizer_kind(place: Path) -> str | None:
    """"Qwen" (its byte-level BPE), "T5" (its sentencepiece) or None, of a folder or a tokenizer.json."""
    whole = place.is_file() or (place / "tokenizer.json").is_file()  # else in the pieces that came before it
    if (place / "spiece.model").is_file() or whole and holds(place, b"<extra_id_0>"):
        return "T5"
    whole |= (place / "merges.txt").is_file() and (place / "vocab.json").is_file()
    if whole and holds(place, b"<|endoftext|>") and not holds(place, b"<|startoftext|>"):  # both: CLIP's
        return "Qwen"
    return None


def first_of(kinds: dict[Path, str | None], kind: str, *marks: bytes) -> Path | None:
    """The first place of a kind whose files hold one of the marks, else the first of the kind."""
    places = [place for place, found in kinds.items() if found == kind]
    marked = (place for place in places if any(holds(place, mark) for mark in marks))
    return next(marked, places[0] if places else None)


def holds(place: Path, sign: bytes) -> bool:
    """Whether a file holds the bytes, or one of a tokenizer folder's files does."""
    files = [place] if place.is_file() else [place / name for name in TOKENIZER_FILES]
    return any(sign in file.read_bytes() for file in files if file.is_file())


def check_tokenizers(qwen: str | Path, t5: str | Path) -> None:
    """Raises WeightsError for two tokenizers that are known to be given the wrong way round."""
    for place, kind in ((Path(qwen), "Qwen"), (Path(t5), "T5")):
        if place.exists() and tokenizer_kind(place) not in (kind, None):
            raise WeightsError(
                f"{place} is {tokenizer_kind(place)}'s tokenizer, but was given as {kind}'s; give "
                "tokenizers=(qwen, t5), in this order"
            )


def find_adapter(adapter: str | Path, folder: str | Path | None) -> Path:
    """The file of an adapter given by path, or by its name in the `loras` of a folder. Raises WeightsError."""
    return find_named(adapter, folder, "adapter", f"published are {', '.join(ADAPTERS)}, each also as FP8")


def find_lora(lora: str | Path, folder: str | Path | None) -> Path:
    """The file of a LoRA given by path, or by its name in the `loras` of a folder. Raises WeightsError."""
    return find_named(lora, folder, "LoRA", "it has none")


def find_named(given: str | Path, folder: str | Path | None, kind: str, otherwise: str) -> Path:
    """A file by path or by name. otherwise: what to say where the folder has no file of the kind."""
    path = Path(given).expanduser()
    if path.is_file() or folder is None or path.suffix == ".safetensors" and len(path.parts) > 1:
        return path
    folder = Path(folder).expanduser()
    roots = [root for root in (folder / "models" / "loras", folder / "loras", folder) if root.is_dir()]
    name = path.name.removesuffix(".safetensors")
    for root in roots:
        for file in sorted(root.rglob("*.safetensors")):
            if file.stem.lower() == name.lower():
                return file
    files = [found for root in roots for found in kinds_in(root.rglob("*.safetensors"))]
    there = sorted({found.path.stem for found in files if found.kind == kind.lower()})
    has = f"it has {', '.join(there)}" if there else otherwise
    raise WeightsError(f"no {kind} {name!r} in the loras of {folder}; {has}; give its path")


def check_slot(source: Source | str, slot: str) -> None:
    """Raises WeightsError for a file that is known to be something else than what its slot takes."""
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return
    found = inspect(source)
    wanted = KINDS.get(slot, slot)
    if found.kind in (wanted, "unknown") or (slot == "vae" and found.kind == "nano codec"):
        return
    belongs = f"give it as {found.slot}=" if found.slot else "it is no part of a model"
    if found.kind == "reference cache":
        belongs = "give it as the reference of a run"
    raise WeightsError(f"{source} is {found.words}, but was given as {slot}; {belongs}")
