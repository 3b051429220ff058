"""What `callbacks=tensorboard` and `callbacks=wandb` show, and how often; without torch."""

from collections.abc import Iterator

from pydantic import Field

from ...arguments import Arguments
from ...config_model import Run


class Options(Arguments):
    """Shows more than scalars in TensorBoard or Weights & Biases."""

    writer: str = Field(description="The logger that shows it: tensorboard or wandb.")
    images: int = Field(default=0, ge=0, description="How many training images to show.")
    gradient_norm: bool = Field(
        default=False, description="The norm of all gradients, before clipping."
    )
    histograms: bool = Field(default=False, description="Histograms of parameters and gradients.")
    confusion_matrix: bool = Field(default=False, description="The one of the validation set.")
    scalars_every_n_steps: int = Field(default=10, ge=1, description="How often to write scalars.")
    histograms_every_n_steps: int = Field(
        default=100, ge=1, description="How often to write histograms."
    )
    figures_every_n_epochs: int = Field(default=5, ge=1, description="How often to write figures.")
    task_every_n_epochs: int = Field(default=1, ge=0, description="How often to call `displays()`.")

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        name = key.rpartition(".")[2]
        if not run.get(f"logger.{self.writer}"):
            yield (
                f"callbacks={name}: writes through logger.{self.writer}, which is missing; "
                f"add +logger={self.writer}, or use '~{key}'"
            )
