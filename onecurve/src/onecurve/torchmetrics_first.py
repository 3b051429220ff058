"""To import this is to import torchmetrics, without SciPy: Lightning takes a fifth less time then.

torchmetrics imports `scipy.signal` for the sake of one name, `hamming`, that SciPy has given up and
a metric of speech asks for (SRMR, by the package gammatone). Unless that is installed it finds a
stand-in here. Whoever imports `scipy.signal` afterwards has SciPy's own.
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
