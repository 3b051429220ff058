"""How far two computations of the same may be apart."""

import torch

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
IN_16_BITS = 2e-2


def tolerance(dtype: torch.dtype) -> float:
    """Of a value of that type, relative: some thousand times its rounding, for long sums."""
    return TOLERANCE.get(dtype, IN_16_BITS)
