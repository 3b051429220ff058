"""The best weights as a folder that `from_pretrained` reads, with the tokenizer beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from onecurve.errors import UserError
from transformers.utils import logging


class SavePretrained(Callback):
    """Writes model and tokenizer after each validation with the best value so far.

    `AutoModelForCausalLM.from_pretrained(folder)` and `AutoTokenizer.from_pretrained(folder)` read
    them; a model with LoRA saves its adapter. The weights are complete under every strategy.

    Args:
        folder: Where they are written.
        monitor: The metric that selects the best weights; without it, the last ones are saved.
        mode: Whether a smaller (`min`) or a larger (`max`) value is better.
        checkpoint_format: How the run writes checkpoints.

    Raises:
        UserError: If they are sharded: no rank gathers all weights then.
    """

    def __init__(
        self,
        folder: str,
        monitor: str,
        mode: Literal["min", "max"] = "min",
        checkpoint_format: Literal["file", "sharded"] = "file",
    ) -> None:
        if checkpoint_format == "sharded":
            raise UserError(
                "callbacks.save_pretrained: saves full weights, but checkpoint.format=sharded "
                "gathers none; use checkpoint.format=file, or leave save_pretrained out"
            )
        self.folder = Path(folder)
        self.monitor = monitor
        self.mode = mode
        self.best: float | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the model if its value is the best so far."""
        value = trainer.callback_metrics.get(self.monitor)
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking or value is None:
            return
        # The first rank decides for all, since all gather the weights.
        new = float(trainer.strategy.broadcast(float(value)))
        if self.best is None or (new < self.best if self.mode == "min" else new > self.best):
            self.best = new
            self._save(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last weights if no validation measured the metric."""
        if self.best is None:
            self._save(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The best value, for a run that is resumed."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value; a new run starts without one."""
        if self.folder.exists():
            self.best = state_dict["best"]

    def _save(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        if not trainer.is_global_zero:
            return
        network: Any = pl_module.network
        weights = {name.removeprefix("network."): value for name, value in state.items()}
        # A run that is killed meanwhile leaves the folder as it was.
        unfinished = self.folder.with_name(f"{self.folder.name}.new")
        rmtree(unfinished, ignore_errors=True)
        with _without_bar():
            network.save_pretrained(unfinished, state_dict=weights)
        data: Any = getattr(trainer, "datamodule", None)
        if hasattr(data, "tokenizer"):
            data.tokenizer.save_pretrained(unfinished)
        rmtree(self.folder, ignore_errors=True)
        unfinished.rename(self.folder)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Hide the progress bars of transformers, which would overwrite that of the run."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
