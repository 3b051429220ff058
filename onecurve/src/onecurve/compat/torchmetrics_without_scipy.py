"""Imports torchmetrics without `scipy.signal`, which takes an eighth of a run's import time.

torchmetrics imports `scipy.signal` to add a name that SciPy has removed, `hamming`, for one metric
of speech (SRMR, which needs the package gammatone). Unless gammatone is installed, torchmetrics
gets a stand-in here; later imports of `scipy.signal` get SciPy's own.
"""

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

SIGNAL = "scipy.signal"


def _is_spared() -> bool:
    there = {"torchmetrics", SIGNAL} & sys.modules.keys()
    return not there and find_spec("scipy") is not None and find_spec("gammatone") is None


if _is_spared():
    stand_in = ModuleType(SIGNAL)
    vars(stand_in).update(hamming=None)
    sys.modules[SIGNAL] = stand_in
    try:
        importlib.import_module("torchmetrics")
    finally:
        del sys.modules[SIGNAL]
