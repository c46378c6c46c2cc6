"""PowerSGD: gradients as products of two thin matrices (Vogels et al. 2019, arXiv 1905.13727).

Linear, so it rides on any all-reduce. Differs from PyTorch's hook in its error feedback, which is
this rank's gradient minus this rank's approximation: no rank holds a part of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compression.checkpoint import Named, by_identity, by_name
from gradwire.compression.configuration import CompressionConfig
from gradwire.compression.traffic import all_reduced, count_sent


class PowerSgd:
    """The right factors, kept from step to step as the next step's start.

    Parameters
    ----------
    config
        Gives the rank of the approximation.
    """

    def __init__(self, config: CompressionConfig) -> None:
        self._rank = config.rank
        self._right: dict[int, Tensor] = {}

    def start(
        self, group: Any, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> Callable[[], list[Tensor]]:
        """Start to average gradients; the returned function ends it and says what was lost."""
        matrices = [
            gradient.view(parameter.shape[0], -1)
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
        right = [self._start_of(*pair) for pair in zip(parameters, matrices, strict=True)]
        left = [matrix @ factor for matrix, factor in zip(matrices, right, strict=True)]
        packed = torch.cat([factor.reshape(-1) for factor in left])
        work = group._reduce_in_place("all_reduce", packed, dist.ReduceOp.AVG, 0, None)

        def finish() -> list[Tensor]:
            work._outcome()
            orthogonal = [torch.linalg.qr(factor).Q for factor in _unpacked(packed, left)]
            own = [matrix.T @ factor for matrix, factor in zip(matrices, orthogonal, strict=True)]
            means = torch.cat([factor.reshape(-1) for factor in own])
            count_sent(group, gradients, all_reduced(group, packed, means))
            group._reduce_in_place("all_reduce", means, dist.ReduceOp.AVG, 0, None)._outcome()
            lost = []
            for parameter, matrix, basis, mine, mean in zip(
                parameters, matrices, orthogonal, own, _unpacked(means, own), strict=True
            ):
                lost.append((matrix - basis @ mine.T).view(-1))
                matrix.copy_(basis @ mean.T)
                if bool(torch.isfinite(mean).all()):
                    self._right[id(parameter)] = mean
            return lost

        return finish

    def state_dict(self, parameters: Named) -> dict[str, Any]:
        """Return the factors by the names of their parameters; the same on all ranks."""
        return {"right": by_name(self._right, parameters)}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Named) -> None:
        """Start from saved factors."""
        tensors = {id(parameter): parameter for _, parameter in parameters}
        self._right = {
            key: factor.to(tensors[key].device)
            for key, factor in by_identity(state["right"], parameters).items()
        }

    def _start_of(self, parameter: Tensor, matrix: Tensor) -> Tensor:
        known = self._right.get(id(parameter))
        if known is not None:
            return known
        rank = min(self._rank, *matrix.shape)
        generator = torch.Generator().manual_seed(matrix.numel())  # The same on all ranks.
        return torch.randn(matrix.shape[1], rank, generator=generator).to(matrix.device)


def _unpacked(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = packed.split([factor.numel() for factor in like])
    return [piece.view_as(factor) for piece, factor in zip(pieces, like, strict=True)]
