"""Tells by a metric's name whether a smaller or a larger value is better."""

from collections.abc import Iterable

BETTER = {
    "min": {"bits_per_byte", "loss", "error", "mse", "mae", "rmse", "perplexity", "seconds"},
    "max": {
        "acc",
        "accuracy",
        "auroc",
        "f1",
        "iou",
        "precision",
        "r2",
        "recall",
        "samples_per_second",
    },
}


def better(name: str) -> str | None:
    """The mode of a well-known metric, "min" or "max"; None for other names."""
    last = name.rpartition("/")[2]
    return next((direction for direction, names in BETTER.items() if last in names), None)


def to_compare_by(names: Iterable[str]) -> str:
    """Overrides that monitor one of these metrics: `monitor=val/acc mode=max`."""
    name = next((each for each in sorted(names) if each.startswith("val/")), "val/loss")
    mode = better(name)
    return f"monitor={name} mode={mode}" if mode else f"monitor={name}"
