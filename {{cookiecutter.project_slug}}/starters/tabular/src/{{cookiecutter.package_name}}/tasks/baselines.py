"""Baselines without a network, which a network should beat."""

import torch
from torch import Tensor

Rows = tuple[Tensor, Tensor]


def baselines(train: Rows, test: Rows) -> dict[str, float]:
    """R² and mean absolute error on test rows, by name.

    For two predictors fitted to the training rows: their mean, and ordinary least squares.

    Args:
        train: features (N, F) and targets (N,).
        test: likewise.
    """
    (inputs, targets), (test_inputs, truth) = (
        (features.double().cpu(), numbers.double().cpu()) for features, numbers in (train, test)
    )
    std, mean = torch.std_mean(inputs, dim=0)
    std = torch.where(std > 0, std, 1.0)

    def with_ones(rows: Tensor) -> Tensor:
        return torch.cat([(rows - mean) / std, torch.ones(len(rows), 1, dtype=rows.dtype)], dim=1)

    # The pseudo-inverse also works with linearly dependent columns.
    weights = torch.linalg.pinv(with_ones(inputs)) @ targets
    predictions = {
        "mean": targets.mean().expand(len(truth)),
        "least_squares": with_ones(test_inputs) @ weights,
    }
    found = {}
    for name, predicted in predictions.items():
        errors = predicted - truth
        spread = (truth - truth.mean()).square().sum()
        found[f"test/r2_of_{name}"] = (1 - errors.square().sum() / spread).item()
        found[f"test/mae_of_{name}"] = errors.abs().mean().item()
    return found
