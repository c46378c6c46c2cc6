"""Data parallel training whose communication hides behind backward and the next forward."""

from gradwire.parallel.parallelize import Parallel, parallelize

__all__ = ["Parallel", "parallelize"]
