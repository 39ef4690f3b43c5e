"""The sampling contract: picking tokens from rows of logits, as an elementwise plugin may do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DrawRows:
    """What is drawn: n rows of the logits, with each row's own parameters."""

    rows: NDArray[np.intp]
    """int[n], rows of the logits."""
    limits: NDArray[np.int64]
    """int64[n]; columns from here on do not exist."""
    top_ids: NDArray[np.int64]
    """int64[n], the likeliest token of each row."""
    top_values: NDArray[np.float32]
    """float32[n], its logit, finite."""
    temperature: NDArray[np.float32]
    """float32[n], over 0."""
    top_k: NDArray[np.int64]
    """int64[n], at least 1."""
    top_p: NDArray[np.float64]
    """float64[n], in (0, 1]."""
    min_p: NDArray[np.float64]
    """float64[n], from 0 to 1."""
    keys: NDArray[np.uint32]
    """uint32[n, 2], of the noise."""


class Drawer(Protocol):
    """Picks tokens from [R, V] logits. A row's result does not depend on other rows."""

    def likeliest(
        self, logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Id and logit of each row's likeliest token, the lowest id among equals; a NaN wins. Logits are of
        the type that the model computes in, or float32.
        """

    def draw(self, logits: Tensor, wanted: DrawRows) -> NDArray[np.int64]:
        """Draw int64[n] tokens of float32 logits: top_k, then top_p on what is left, then min_p, then noise.

        The token with the least noise per weight wins, the likelier and then the lower id among equals. Its
        noise is ``-log1p(-(b + 0.5) / 2**32)`` with the bits ``b`` of its spread id ``s`` and the row's keys,
        in 32 bits::

            x = s ^ key0
            x ^= x >> 16;  x *= 0x21F0AAAD;  x ^= x >> 15;  x += key1;  x *= 0xD35A2D97;  b = x ^ (x >> 15)
        """


@runtime_checkable
class DrawingElementwise(Protocol):
    """An ``Elementwise`` that draws, too."""

    def drawer(self, spread_ids: NDArray[np.uint32]) -> Drawer:
        """For a vocabulary, given the first stage of its ids' noise, uint32[V]."""
