"""Says in one line that nothing logs the metric by which checkpoints and schedulers compare."""

import re

from lightning.pytorch import Trainer

from ..errors import UserError

# What ModelCheckpoint says; what EarlyStopping and schedulers say.
MISSING = re.compile(
    r"\(monitor='?(.*?)'?\)`? could not find|conditioned on metric `?(\S+?)`? which is not"
)


def missing_metric(error: Exception, trainer: Trainer) -> UserError | None:
    """The line for an error of Lightning's about a metric that is not there; None for others."""
    found = MISSING.search(str(error))
    if found is None:
        return None
    name = found[1] or found[2]
    logged = sorted(key for key in trainer.callback_metrics if "/" in key and key != name)
    example = next((key for key in logged if key.startswith("val/")), "val/loss")
    return UserError(
        f"monitor={name}: nothing logs a metric of that name; this task logs "
        f"{', '.join(logged) or 'none'}; such as monitor={example}"
    )
