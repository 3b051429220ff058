"""Diabetes patients from scikit-learn: real data that needs no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from .table import Rows, Table


class Diabetes(Table):
    """442 patients: ten measurements, and how far the disease has gone a year later.

    Source: Efron, Hastie, Johnstone and Tibshirani, "Least angle regression", 2004, as
    `sklearn.datasets.load_diabetes(scaled=False)` ships it.
    """

    def read(self) -> Rows:
        """Read both files directly, because importing scikit-learn is slow."""
        spec = find_spec("sklearn")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        folder = Path(spec.submodule_search_locations[0], "datasets/data")
        features, targets = (
            torch.from_numpy(np.loadtxt(folder / f"diabetes_{name}.csv.gz", dtype=np.float32))
            for name in ("data_raw", "target")
        )
        return features, targets
