"""What a killed run leaves behind and the next one takes up: finished layers, and what enters the next."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hundredfold.models import safetensors_header
from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.pieces import write_piece

FOLDER = ".quantize"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class LayerError:
    """How far a linear layer's output is off, over the calibration text."""

    name: str
    recipe: str
    error: float
    """Norm of the difference by the norm of the output; of weights where no inputs were looked at."""


class WorkFolder:
    """``DIR/.quantize``: a manifest, a piece a layer, the sequences between two layers."""

    def __init__(self, output: Path, asked: Mapping[str, Any]) -> None:
        """``asked`` is everything that decides the result, as JSON has it.

        Raises ``QuantizeError`` when the directory holds something else, or a run that was asked otherwise.
        """
        self._folder = output / FOLDER
        self._asked = json.loads(json.dumps(asked))
        self.errors: list[LayerError] = []
        self.done = 0
        """Finished layers."""
        path = self._folder / MANIFEST
        if not path.is_file() and output.exists() and any(entry.name != FOLDER for entry in output.iterdir()):
            raise QuantizeError(f"{output} is not empty; name a directory that is not there yet")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._folder.joinpath("lock").open("w")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QuantizeError(f"another run is at work in {output}") from None
        if path.is_file():
            self._take_up(path)
        else:
            self._commit()

    def piece(self, index: int) -> Path:
        """The file of one layer's tensors."""
        return self._folder / f"layer-{index:05d}.safetensors"

    @property
    def ends(self) -> Path:
        """The file of the tensors outside of the layers."""
        return self._folder / "ends.safetensors"

    def finish_layer(
        self, tensors: Mapping[str, Tensor], hidden: Sequence[Tensor], errors: Sequence[LayerError]
    ) -> None:
        """Keep a layer and what enters the next; from here on it is never done again."""
        index = self.done
        write_piece(self.piece(index), tensors)
        if hidden:
            write_piece(self._hidden(index + 1), {f"{n:06d}": x for n, x in enumerate(hidden)})
        self.done += 1
        self.errors.extend(errors)
        self._commit()
        self._hidden(index).unlink(missing_ok=True)

    def hidden(self) -> list[Tensor]:
        """The sequences that enter the next layer, float32[T, hidden], once a layer is done.

        Raises ``QuantizeError``: they are not there any more.
        """
        path = self._hidden(self.done)
        if not path.is_file():
            raise QuantizeError(f"{path} is missing, so the run cannot go on; begin in another directory")
        found = []
        with path.open("rb") as file:
            for tensor in safetensors_header(path).tensors.values():
                file.seek(tensor.offset)
                raw = bytearray(file.read(tensor.nbytes))
                found.append(torch.frombuffer(raw, dtype=torch.float32).view(tensor.shape))
        return found

    def remove(self) -> None:
        """Delete the folder: the checkpoint is complete."""
        (self._folder / MANIFEST).unlink()  # first: a folder without it is nobody's
        self._lock.close()
        shutil.rmtree(self._folder)

    def _hidden(self, index: int) -> Path:
        return self._folder / f"hidden-{index:05d}.safetensors"

    def _commit(self) -> None:
        content = {"asked": self._asked, "done": self.done, "errors": [asdict(e) for e in self.errors]}
        path = self._folder / MANIFEST
        unfinished = path.with_name(f"{MANIFEST}.unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def _take_up(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            asked, self.done = content["asked"], int(content["done"])
            self.errors = [LayerError(**entry) for entry in content["errors"]]
        except (ValueError, KeyError, TypeError) as error:
            raise QuantizeError(f"{path} is damaged ({error}); remove {path.parent} to begin anew") from None
        different = [key for key in {**asked, **self._asked} if asked.get(key) != self._asked.get(key)]
        if different:
            key = different[0]
            raise QuantizeError(
                f"{path.parent} holds a run that was asked otherwise: {key} was {_show(asked.get(key))}, "
                f"now it is {_show(self._asked.get(key))}; go on as it was, or remove the directory"
            )


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
