"""The one exception that gradwire raises for what goes wrong in communication."""

from __future__ import annotations

import torch.distributed as dist


class GradwireError(dist.DistBackendError):
    """An operation failed; the message names the operation, the peer and the cause.

    Raised for lost peers, passed deadlines, aborts and ranks that disagree about an operation.
    Being a `torch.distributed.DistBackendError` it is caught by code written for other backends.

    Attributes
    ----------
    culprit
        World rank of the one to blame, `None` where there is none.
    """

    culprit: int | None = None
