"""What the name of a metric tells: its stage, and whether less of it is better."""

import re

LESS = ("bits_per_byte", "loss", "error", "mse", "mae", "rmse", "perplexity", "seconds")
MORE = ("acc", "accuracy", "auroc", "f1", "iou", "precision", "r2", "recall", "samples_per_second")
BETTER = {**dict.fromkeys(LESS, "min"), **dict.fromkeys(MORE, "max")}
STAGES = re.compile(r"^(train|val|valid|validation|eval|test)[/_.-]")


def without_stage(metric: str) -> str:
    """The name of a metric without that of its stage: `acc` of `val/acc` and `Val_Acc`."""
    return STAGES.sub("", metric.lower())


def is_metric(name: str) -> bool:
    """Whether a number in metrics.json is a metric by its name: `val/loss`, `val_acc`."""
    return "/" in name or without_stage(name) != name.lower()


def better(name: str) -> str | None:
    """The mode of a well-known metric, "min" or "max"; None for other names."""
    return BETTER.get(without_stage(name).rpartition("/")[2])


def of_validation(metric: str) -> bool:
    """Whether a metric is one of validation by its name: `val/loss`, `val_acc`, `valid_f1`."""
    return metric.lower().startswith(("val", "eval"))
