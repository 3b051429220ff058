"""What the name of a metric tells: which way it is better, and which to compare by."""

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
    """Which way a metric of a well-known name is better: "min" or "max"."""
    last = name.rpartition("/")[2]
    return next((direction for direction, names in BETTER.items() if last in names), None)


def to_compare_by(names: Iterable[str]) -> str:
    """What to type to compare by one of these metrics: `monitor=val/acc mode=max`."""
    name = next((each for each in sorted(names) if each.startswith("val/")), "val/loss")
    mode = better(name)
    return f"monitor={name} mode={mode}" if mode else f"monitor={name}"
