"""How long operations take on a processor: each is as slow as its products or its memory."""

from __future__ import annotations

import numpy as np

from .hardware import MEMORY, Hardware
from .operations import Work


def seconds(work: Work, samples: float, hardware: Hardware) -> float:
    """Time of a pass.

    An operation takes what its FLOPs take at the rate that is reached, or what its bytes take, or,
    if both are small, what it takes to start it.

    Args:
        work: Its operations.
        samples: How many samples pass.
        hardware: On what.
    """
    if not len(work.flops):
        return 0.0
    peak = hardware.flops * np.where(work.low > 0, 1.0, hardware.in_float32)
    rate = peak * np.where(work.is_attention > 0, hardware.attention, hardware.matmul)
    computing = (work.flops - work.skipped) * samples / rate
    moving = (work.bytes * samples + work.fixed) / (hardware.bandwidth * MEMORY)
    starts = np.where((work.bytes + work.fixed + work.flops) > 0, hardware.launch, 0.0)
    return float(np.maximum(np.maximum(computing, moving), starts).sum())
