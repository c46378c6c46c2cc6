"""gradwire: collectives for training over real networks, as a `torch.distributed` backend.

    import gradwire
    import torch.distributed as dist

    dist.init_process_group("gradwire")

Importing the package registers the backend.
"""

from gradwire import collectives, compiler, lineage, process_group, staging, work
from gradwire._native import __version__
from gradwire.errors import GradwireError
from gradwire.process_group import GradwireBackend, GradwireProcessGroup
from gradwire.registration import Options, options, register

__all__ = [
    "GradwireBackend",
    "GradwireError",
    "GradwireProcessGroup",
    "Options",
    "__version__",
    "options",
    "register",
]

compiler.skip(collectives, lineage, process_group, staging, work)
register()
