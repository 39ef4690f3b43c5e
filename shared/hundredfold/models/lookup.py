"""Turns what a user calls a model into checkpoint files on this machine. Never touches the network."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import replace
from pathlib import Path

from hundredfold.models.cache import cache_directory
from hundredfold.models.catalog import CATALOG, CatalogModel
from hundredfold.models.errors import CheckpointError, ModelError, ModelNotFound
from hundredfold.models.files import ModelFiles
from hundredfold.models.safetensors_header import shard_files

HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96})(?:@(?P<revision>[\w.-]{1,100}))?", re.ASCII
)
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

_PULL = "hundredfold models pull"
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def resolve(model: str, *, cache: Path | None = None) -> ModelFiles:
    """Find a model on this machine.

    Args:
        model: A catalog name, a directory, a .gguf file, or the id of a pulled Hugging Face repository
            (``owner/name``, with ``@revision`` if wanted). What exists on disk wins over an id.
        cache: Directory of downloaded catalog models; see ``cache_directory``.

    Raises:
        ModelNotFound: Nothing here has that name or path.
        ModelError: It is there and cannot be used: no config.json, no weights, or weights in pickles only.
        CheckpointError: The index of a sharded checkpoint is damaged.
    """
    if not model.strip() or "\0" in model or len(model) > 4096:
        raise ModelNotFound(f"{model[:80]!r} is no name of a model")
    if "://" in model:
        raise ModelNotFound(
            f"{model[:200]!r} is a URL; name a path, a catalog name or a hub id such as owner/name"
        )
    if model in CATALOG:
        return _from_catalog(CATALOG[model], cache_directory(cache))
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return directory_files(path)
        if path.is_file():
            return _single_file(path)
    except OSError as error:
        raise ModelError(f"model path {model!r} cannot be read: {error.strerror}") from None
    hub = HUB_ID.fullmatch(model)
    looks_like_path = model.startswith((".", "~", os.sep)) or path.suffix in (
        ".gguf",
        ".safetensors",
        *PICKLE_SUFFIXES,
    )
    if hub and not looks_like_path:
        return _from_hub_cache(hub["repo"], hub["revision"])
    if looks_like_path or os.sep in model:
        raise ModelNotFound(f"model path {model!r} does not exist")
    raise ModelNotFound(f"no model is called {model!r}{_nearest(model)}; known names: {', '.join(CATALOG)}")


def directory_files(directory: Path) -> ModelFiles:
    """The checkpoint in one directory; safetensors win over GGUF.

    Raises:
        ModelError, CheckpointError: As ``resolve``.
    """
    found = sorted(path for path in directory.iterdir() if path.is_file())
    names = {path.name: path for path in found}
    safetensors = [path for path in found if path.suffix == ".safetensors"]
    ggufs = [path for path in found if path.suffix == ".gguf"]
    index = names.get("model.safetensors.index.json") or _only_index(found, names)
    config = names.get("config.json")
    common = ModelFiles(
        name=directory.resolve().name,
        root=directory,
        container="safetensors",
        weights=(),
        config=config,
        tokenizer=names.get("tokenizer.json"),
        tokenizer_config=names.get("tokenizer_config.json"),
        generation_config=names.get("generation_config.json"),
        chat_template=names.get("chat_template.jinja"),
    )
    if index is None and not safetensors and ggufs:
        return replace(common, container="gguf", weights=(_only(ggufs, directory),))
    if index is None and not safetensors:
        raise _no_weights(directory, found)
    if config is None:
        raise ModelError(f"model directory {directory} has no config.json")
    if index is not None:
        return replace(common, weights=tuple(sorted(set(shard_files(index).values()))), index=index)
    whole = names.get("model.safetensors")
    return replace(common, weights=(whole or _only(safetensors, directory),))


def _only_index(found: list[Path], names: dict[str, Path]) -> Path | None:
    """An index of another name, such as AutoGPTQ's: where it is the one, and no file has the usual name."""
    indexes = [path for path in found if path.name.endswith(".safetensors.index.json")]
    return indexes[0] if len(indexes) == 1 and "model.safetensors" not in names else None


def _from_catalog(entry: CatalogModel, cache: Path) -> ModelFiles:
    path = entry.path(cache)
    try:
        size = path.stat().st_size
    except OSError:
        problem = f"model '{entry.name}' is not in {cache}; fetch it with `{_PULL} {entry.name}`"
        raise ModelNotFound(problem) from None
    if size != entry.size:
        raise CheckpointError(
            path, f"has {size} bytes, not {entry.size}; fetch it anew with `{_PULL} {entry.name}`"
        )
    return ModelFiles(name=entry.name, root=path.parent, container="gguf", weights=(path,))


def _single_file(path: Path) -> ModelFiles:
    if path.suffix in PICKLE_SUFFIXES:
        raise ModelError(
            f"{path} is a pickle, which can run code and is never read; convert it to safetensors or GGUF"
        )
    if path.suffix != ".gguf":
        raise ModelError(f"{path} is no .gguf file; a safetensors checkpoint is named by its directory")
    return ModelFiles(
        name=path.stem, root=path.parent, container="gguf", weights=(_only([path], path.parent),)
    )


def _from_hub_cache(repo: str, revision: str | None) -> ModelFiles:
    from huggingface_hub import snapshot_download  # slow to import, and only hub ids need it
    from huggingface_hub.errors import LocalEntryNotFoundError

    name = f"{repo}@{revision}" if revision else repo
    try:
        directory = snapshot_download(repo, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError:
        problem = f"model {name!r} is neither a path nor in the hub's cache; fetch it with `{_PULL} {name}`"
        raise ModelNotFound(problem) from None
    return replace(directory_files(Path(directory)), name=repo)


def _only(paths: list[Path], directory: Path) -> Path:
    if len(paths) > 1:
        listed = ", ".join(path.name for path in paths[:8])
        raise ModelError(
            f"{directory} holds {len(paths)} weight files and nothing says which to use: {listed}"
        )
    if _SPLIT_GGUF.search(paths[0].name):
        raise ModelError(f"{paths[0]} is one piece of a split GGUF file; merge the pieces first")
    return paths[0]


def _no_weights(directory: Path, found: list[Path]) -> ModelError:
    pickles = [path.name for path in found if path.suffix in PICKLE_SUFFIXES]
    if pickles:
        return ModelError(
            f"model directory {directory} has its weights in pickles only ({', '.join(pickles[:3])}), which "
            "can run code and are never read; convert them to safetensors or GGUF"
        )
    return ModelError(f"model directory {directory} has no weights: no .safetensors and no .gguf file")


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), list(CATALOG), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'? Fetch it with `{_PULL} {near[0]}`" if near else ""
