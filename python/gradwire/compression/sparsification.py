"""Sparsifiers: only some elements of a gradient travel, the rest waits in error feedback.

`top_k` sends the largest (Aji and Heafield 2017, arXiv 1704.05021; Lin et al. 2017, 1712.01887),
with their indices, to every rank: its bytes grow with the number of ranks. `random_k` sends
elements that all ranks draw alike, so it needs no indices and is linear (Stich et al. 2018,
1809.07599). `block_sparse` loses nothing: only blocks that some rank has anything in are sent
(OmniReduce, Fei et al. 2021), which costs an exchange of bitmaps first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import _native
from gradwire.compression.checkpoint import Named, by_identity, by_name
from gradwire.compression.configuration import CompressionConfig
from gradwire.compression.traffic import all_reduced, count_sent

_BLOCK = 256
"""Elements of a block of `block_sparse`."""

Finisher = Callable[[], list[Tensor]]


class Sparsifier:
    """Sends a part of the elements.

    Parameters
    ----------
    config
        Says which kind, and how many.
    """

    def __init__(self, config: CompressionConfig) -> None:
        self._config = config
        self._uses: Counter[int] = Counter()

    def start(
        self, group: Any, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> Finisher:
        """Start to average gradients; the returned function ends it and says what was lost."""
        if self._config.codec == "block_sparse":
            return _start_blocks(group, gradients)
        if self._config.codec == "top_k":
            return self._start_largest(group, gradients)
        return self._start_random(group, parameters, gradients)

    def state_dict(self, parameters: Named) -> dict[str, Any]:
        """Return how often elements of each parameter were drawn; the same on all ranks."""
        return {"uses": by_name(self._uses, parameters)}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Named) -> None:
        """Go on to draw where a saved run was."""
        self._uses = Counter(by_identity(state["uses"], parameters))

    def _start_largest(self, group: Any, gradients: Sequence[Tensor]) -> Finisher:
        hosts = [gradient.cpu() for gradient in gradients]
        sizes = [
            (host.numel(), max(1, round(host.numel() * self._config.density))) for host in hosts
        ]
        lengths = [_native.sparse_bytes(*size) for size in sizes]
        wire = torch.empty(sum(lengths), dtype=torch.uint8)
        for host, piece, (_, count) in zip(hosts, wire.split(lengths), sizes, strict=True):
            _native.encode_top_k(_place(host), count, _place(piece))
        gathered = torch.empty(group.size(), wire.numel(), dtype=torch.uint8)
        work = group._move("all_gather", [wire], [gathered])
        count_sent(group, gradients, (group.size() - 1) * wire.nbytes)

        def finish() -> list[Tensor]:
            work._outcome()
            lost = [host.clone() for host in hosts]
            for residual, piece in zip(lost, wire.split(lengths), strict=True):
                own = torch.zeros_like(residual)
                _native.decode_sparse_add(_place(piece), _place(own))
                residual -= own
            for host in hosts:
                host.zero_()
            for row in gathered:  # In the order of ranks, so that all get the same bits.
                for host, piece in zip(hosts, row.split(lengths), strict=True):
                    _native.decode_sparse_add(_place(piece), _place(host))
            for gradient, host in zip(gradients, hosts, strict=True):
                gradient.copy_(host.div_(group.size()))
            return lost

        return finish

    def _start_random(
        self, group: Any, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> Finisher:
        chosen = [self._draw(*pair) for pair in zip(parameters, gradients, strict=True)]
        values = torch.cat([_drawn(*pair) for pair in zip(gradients, chosen, strict=True)])
        work = group._reduce_in_place("all_reduce", values, dist.ReduceOp.AVG, 0, None)
        count_sent(group, gradients, all_reduced(group, values))
        feeds_back = self._config.feeds_back

        def finish() -> list[Tensor]:
            work._outcome()
            lost = []
            pieces = values.split([indices.numel() for indices in chosen])
            for gradient, indices, piece in zip(gradients, chosen, pieces, strict=True):
                residual = gradient.clone()
                residual[indices] = 0
                lost.append(residual)
                # Without error feedback the expectation has to be right.
                weight = 1.0 if feeds_back else gradient.numel() / indices.numel()
                gradient.zero_()
                gradient[indices] = piece * weight
            return lost

        return finish

    def _draw(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Draw elements, the same on all ranks and others each time."""
        use = self._uses[id(parameter)]
        self._uses[id(parameter)] += 1
        generator = torch.Generator().manual_seed(use * 1_000_003 + gradient.numel())
        count = max(1, round(gradient.numel() * self._config.density))
        indices = torch.randint(gradient.numel(), (count,), generator=generator)
        return torch.unique(indices).to(gradient.device)


def _drawn(gradient: Tensor, indices: Tensor) -> Tensor:
    """Return some elements, or NaN for each if any element is not finite: all ranks have to see."""
    finite = torch.isfinite(gradient).all()
    return torch.where(finite, gradient[indices], torch.nan)


def _start_blocks(group: Any, gradients: Sequence[Tensor]) -> Finisher:
    blocks = [_blocks(gradient) for gradient in gradients]
    filled = torch.cat([(block != 0).any(1) for block in blocks]).to(torch.uint8)
    work = group._reduce_in_place("all_reduce", filled, dist.ReduceOp.BOR, 0, None)

    def finish() -> list[Tensor]:
        work._outcome()
        chosen = [part.bool() for part in filled.split([len(block) for block in blocks])]
        packed = torch.cat(
            [block[mask].reshape(-1) for block, mask in zip(blocks, chosen, strict=True)]
        )
        count_sent(group, gradients, all_reduced(group, filled, packed))
        group._reduce_in_place("all_reduce", packed, dist.ReduceOp.AVG, 0, None)._outcome()
        start = 0
        for gradient, block, mask in zip(gradients, blocks, chosen, strict=True):
            elements = int(mask.sum()) * _BLOCK
            block.zero_()  # Blocks of negative zeros are sent by nobody.
            block[mask] = packed[start : start + elements].view(-1, _BLOCK)
            gradient.copy_(block.view(-1)[: gradient.numel()])
            start += elements
        return []

    return finish


def _blocks(gradient: Tensor) -> Tensor:
    """Return a gradient as rows of a block each, padded with zeros."""
    padding = -gradient.numel() % _BLOCK
    return torch.nn.functional.pad(gradient, (0, padding)).view(-1, _BLOCK)


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()
