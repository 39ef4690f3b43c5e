"""Reads a model's parameters by name and shape, and says what is missing, wrong or unused."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hundredfold.plugin import CanonicalWeight, DenseWeight, LayerRequest, QuantizationMethod
from hundredfold_worker.model.architectures import ParameterNames
from hundredfold_worker.model.checkpoint import Checkpoint
from hundredfold_worker.model.errors import ModelLoadError

MAX_LISTED = 8


class WeightReader:
    """One checkpoint's parameters, each read once. Its tensors are copies; the files are not held on to."""

    def __init__(self, checkpoint: Checkpoint, method: QuantizationMethod, names: ParameterNames) -> None:
        self._path: Path = checkpoint.path
        self._tensors = checkpoint.tensors
        self._method = method
        self._names = names
        self.num_parameters = 0

    def matrix(self, name: str, shape: tuple[int, int]) -> CanonicalWeight:
        """The weight of a layer or table. Raises ``ModelLoadError`` naming tensor, shape and reason."""
        layer = LayerRequest(name, shape)
        if self._method.covers(layer):
            try:
                weight = self._method.load(layer, self._tensors)
            except (ValueError, KeyError) as error:
                raise self._unreadable(f"{name}.weight", shape, error) from error
        else:
            weight = DenseWeight(self._dense(f"{name}.weight", shape))
        self.num_parameters += shape[0] * shape[1]
        return weight

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight or a bias, [size] in its stored type. Raises ``ModelLoadError``."""
        values = self._dense(name, (size,))
        self.num_parameters += size
        return values

    def no_bias(self, name: str) -> None:
        """Hold a layer to having no bias but zeros, which some quantizers store for every layer.

        Raises ``ModelLoadError`` naming the layer: leaving out what is not zero gives wrong answers.
        """
        bias = f"{name}.bias"
        if self._tensors.shape(bias) is not None and self._tensors.describe(bias).raw.any():
            raise ModelLoadError(
                f"{self._path}: tensor '{bias}' is not zero, but the configuration says that layer '{name}' "
                "has no bias"
            )

    def warnings(self) -> list[str]:
        """What is odd about the checkpoint, once everything was read."""
        unused = [name for name in self._tensors.unused() if not self._names.ignored.fullmatch(name)]
        head = f"{self._names.head}.weight"
        said = []
        if head in unused:
            unused.remove(head)
            said.append(
                f"{self._path}: tensor '{head}' is not used: the configuration ties the output layer to the "
                "embedding, and that wins"
            )
        if unused:
            said.append(f"{self._path}: {len(unused)} tensors are not used: {_list(unused)}")
        return said

    def release(self) -> None:
        """Give back the file pages read so far."""
        self._tensors.release()

    def _dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored = self._tensors.shape(name)
        if stored is None:
            raise self._unreadable(name, shape, KeyError(name))
        if stored != shape:
            raise ModelLoadError(
                f"{self._path}: tensor '{name}' has shape {_show(stored)}, expected is {_show(shape)}"
            )
        try:
            values = self._tensors.dense(name)
        except ValueError as error:
            raise ModelLoadError(f"{self._path}: {error}") from error
        if not values.is_floating_point():
            raise ModelLoadError(f"{self._path}: tensor '{name}' is {values.dtype}, expected is a float type")
        return values

    def _unreadable(self, name: str, shape: tuple[int, ...], error: Exception) -> ModelLoadError:
        if name in self._tensors.names() or self._tensors_of(name):
            return ModelLoadError(f"{self._path}: {error}")
        alike = [other for other in self._tensors.unused() if self._tensors.shape(other) == shape]
        expected = self._expected()
        strangers = [other for other in alike if other not in expected]
        if strangers:
            return ModelLoadError(
                f"{self._path}: tensor '{name}' {_show(shape)} is missing; of that shape the checkpoint has "
                f"{_list(strangers)}, which nothing uses: was it renamed?"
            )
        return ModelLoadError(f"{self._path}: tensor '{name}' {_show(shape)} is missing")

    def _tensors_of(self, name: str) -> bool:
        """Whether the layer is there under a format's own tensor names."""
        layer = name.removesuffix("weight")
        return any(other.startswith(layer) for other in self._tensors.names())

    def _expected(self) -> set[str]:
        names = self._names
        layers = (name for layer in names.layers for name in layer)
        return {f"{name}.weight" for name in (*layers, names.embedding, names.final_norm, names.head)}


def _show(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{name[:200]}'" for name in names[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"
