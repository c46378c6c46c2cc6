"""Fewer bytes on the wire: codecs for plain tensors, DDP and FSDP2, and what chooses among them."""

from gradwire.compression.configuration import CompressionConfig
from gradwire.compression.fully_sharded import compress_fully_sharded
from gradwire.compression.hook import ddp_hook
from gradwire.compression.one_bit import OneBitAdam
from gradwire.compression.operations import all_gather, all_reduce, reduce_scatter
from gradwire.compression.state import CompressionState

__all__ = [
    "CompressionConfig",
    "CompressionState",
    "OneBitAdam",
    "all_gather",
    "all_reduce",
    "compress_fully_sharded",
    "ddp_hook",
    "reduce_scatter",
]
