"""DDP's communication hook.

A bucket's future is completed by a thread that waits for its operations and does not take the cores
from the backward pass meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from gradwire.compression.arrangement import Arrived, content_of, give_back
from gradwire.compression.bucket import BucketContent, BucketJob
from gradwire.compression.configuration import CompressionConfig, as_config
from gradwire.compression.state import CompressionState
from gradwire.futures import POOL
from gradwire.lineage import OperationFuture


def _hook(state: CompressionState, bucket: dist.GradBucket) -> Future[Tensor]:
    if bucket.index() == 0:
        state.begin_step()
    buffer = bucket.buffer()
    content = content_of(bucket.index(), bucket.parameters(), bucket.gradients(), buffer)
    future = OperationFuture(None, [] if buffer.is_cpu else [buffer.device])
    together = state.arrangement.add(Arrived(content, future), bucket.is_last())
    if together:
        contents = state.arrangement.contents(together)
        jobs = [state.start(content) for content in contents]
        POOL.run(lambda: _finish(state, jobs, contents, together))
    return future


# DDP compares these as objects, and here annotations are strings.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}


def _finish(
    state: CompressionState,
    jobs: Sequence[BucketJob],
    contents: Sequence[BucketContent],
    arrived: Sequence[Arrived],
) -> None:
    failure: BaseException | None = None
    try:
        for job in jobs:
            job.finish(drives=False)
        give_back(contents, arrived)
    except Exception as error:  # noqa: BLE001 - DDP raises it where it waits
        failure = error
    for _ in jobs:
        state.finished()
    for one in arrived:
        if failure is None:
            one.future.set_result(one.content.buffer)
        else:
            one.future.fail(failure)


def ddp_hook(
    config: str | CompressionConfig = "adaptive",
    *,
    group: Any = None,
    module: nn.Module | None = None,
    **changes: Any,
) -> tuple[CompressionState, Callable[[CompressionState, dist.GradBucket], Future[Tensor]]]:
    """Return state and hook for `ddp.register_comm_hook(*ddp_hook(...))`.

    Parameters
    ----------
    config
        The name of a codec, `adaptive`, or a `CompressionConfig`.
    group
        DDP's process group; the default group if not given.
    module
        The model: so that `adaptive` knows embeddings, and its table has the parameters' names.
    changes
        Fields of the `CompressionConfig` that differ from `config`'s.

    Raises
    ------
    ValueError
        For an unknown codec or a value out of range, saying what there is.

    Examples
    --------
    >>> ddp.register_comm_hook(*gradwire.ddp_hook("adaptive"))
    >>> ddp.register_comm_hook(*gradwire.ddp_hook("top_k", density=0.01))
    """
    state = CompressionState(as_config(config, **changes), group)
    if module is not None:
        state.know(module)
    return state, _hook
