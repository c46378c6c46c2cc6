"""gradwire: collectives for training over real networks, as a `torch.distributed` backend.

    import gradwire
    import torch.distributed as dist

    dist.init_process_group("gradwire")

Importing the package registers the backend.
"""

from gradwire import collectives, compiler, lineage, process_group, staging, tracing, work
from gradwire._native import __version__
from gradwire.compression import (
    CompressionConfig,
    CompressionState,
    OneBitAdam,
    all_gather,
    all_reduce,
    compress_fully_sharded,
    ddp_hook,
    reduce_scatter,
)
from gradwire.errors import GradwireError
from gradwire.logs import start_logging
from gradwire.parallel import Parallel, parallelize
from gradwire.process_group import GradwireBackend, GradwireProcessGroup
from gradwire.registration import Options, options, register
from gradwire.tracing import profile

__all__ = [
    "CompressionConfig",
    "CompressionState",
    "GradwireBackend",
    "GradwireError",
    "GradwireProcessGroup",
    "OneBitAdam",
    "Options",
    "Parallel",
    "__version__",
    "all_gather",
    "all_reduce",
    "compress_fully_sharded",
    "ddp_hook",
    "options",
    "parallelize",
    "profile",
    "reduce_scatter",
    "register",
    "tracing",
]

start_logging()
compiler.skip(collectives, lineage, process_group, staging, tracing, work)
register()
