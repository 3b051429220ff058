"""A metric with values that a test chooses."""

from lightning.pytorch import Callback, LightningModule, Trainer


class Scripted(Callback):
    """Logs a value for each epoch with a validation, and the last one again in later epochs."""

    def __init__(self, name: str, values: list[float | str]) -> None:
        self.name = name
        self.values = values

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = self.values[min(trainer.current_epoch, len(self.values) - 1)]
        pl_module.log(self.name, float(value), prog_bar=True)


def scripted(name: str, *values: float | str) -> str:
    """What is typed for such a callback."""
    listed = ",".join(map(str, values))
    return f"+callbacks.own={{_target_:scripted.Scripted,name:{name},values:[{listed}]}}"
