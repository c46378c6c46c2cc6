"""What codecs do to gradients, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire._native import Codec
from gradwire.compression.planning import NONE

SAMPLE_ELEMENTS = 1 << 16
"""So much of a tensor tells what a codec does to it."""


class CodecMeter:
    """Tries codecs on gradients.

    Parameters
    ----------
    names
        The codecs; `none` is left out.

    Attributes
    ----------
    bytes_per_element
        On the wire, by codec.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._codecs = {name: Codec(name) for name in names if name != NONE}
        self.bytes_per_element = {NONE: 4.0} | {
            name: codec.encoded_bytes(SAMPLE_ELEMENTS) / SAMPLE_ELEMENTS
            for name, codec in self._codecs.items()
        }
        self._seconds: dict[str, tuple[float, float]] = {}

    def relative_errors(self, gradient: Tensor) -> dict[str, float]:
        """Return for each codec its squared error over the gradient's squared norm."""
        sample = _sample(gradient)
        square = float(torch.linalg.vector_norm(sample)) ** 2
        if square == 0.0 or not square < float("inf"):
            return dict.fromkeys(self._codecs, 0.0)
        return {name: self._try(name, sample) / square for name in self._codecs}

    def _try(self, name: str, sample: Tensor) -> float:
        codec = self._codecs[name]
        wire = torch.empty(codec.encoded_bytes(sample.numel()), dtype=torch.uint8)
        decoded = torch.zeros_like(sample)
        places = (sample.data_ptr(), sample.numel()), (wire.data_ptr(), wire.numel())
        start = time.perf_counter()
        codec.encode(*places, 0)
        middle = time.perf_counter()
        codec.decode_add(places[1], (decoded.data_ptr(), decoded.numel()))
        end = time.perf_counter()
        if sample.numel() == SAMPLE_ELEMENTS:
            now = (middle - start) / SAMPLE_ELEMENTS, (end - middle) / SAMPLE_ELEMENTS
            known = self._seconds.get(name, now)
            self._seconds[name] = (min(known[0], now[0]), min(known[1], now[1]))
        return float(torch.linalg.vector_norm(decoded - sample)) ** 2

    def seconds(self, names: Sequence[str]) -> list[float]:
        """Return seconds to encode and to decode an element, one codec after the other."""
        return [value for name in names for value in self._seconds.get(name, (1e-9, 1e-9))]


def _sample(gradient: Tensor) -> Tensor:
    """Return a stretch from the middle of a gradient, on the host."""
    flat = gradient.reshape(-1)
    start = max(0, (flat.numel() - SAMPLE_ELEMENTS) // 2)
    return flat[start : start + SAMPLE_ELEMENTS].to("cpu", copy=True)
