"""Private names of PyTorch and Lightning that are used, each with what would make it unneeded."""

# Lightning reads what was predicted from this class alone; a public way to say it would do.
from lightning.pytorch.overrides.distributed import (
    _IndexBatchSamplerWrapper as IndexBatchSamplerWrapper,
)

__all__ = ["IndexBatchSamplerWrapper"]
