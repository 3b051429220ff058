"""The arguments of `callbacks=ema` and `callbacks=swa`, described once; without torch."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ..arguments import Arguments
from ..config_model import Count, Run


class ExponentialMovingAverageOptions(Arguments):
    """Averages the weights after every optimizer step, and validates the average."""

    decay: float = Field(
        default=0.999,
        ge=0,
        le=1,
        description="Share of the average that a step keeps; less in the first steps.",
    )


class StochasticWeightAveragingOptions(Arguments):
    """Averages the weights late in training; the average is tested at the end."""

    file: str = Field(description="Where to save the average.")
    start: float = Field(
        default=0.75, ge=0, description="When to start: a share of the run, or an epoch."
    )
    every_n_steps: Count | None = Field(default=None, description="Null: at the end of each epoch.")
    lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Learning rate from then on; null keeps the schedule's."
    )
    anneal_epochs: float = Field(
        default=1, ge=0, description="Epochs until the learning rate is `lr`."
    )
    annealing: Literal["cosine", "linear"] = Field(default="cosine", description="The way to `lr`.")

    def refusals(self, run: Run, key: str) -> Iterator[str]:
        if run.has("gradient_accumulation") and self.start >= 1:
            yield (
                f"{key}.start={run.get(f'{key}.start')}: epochs have different numbers of steps "
                "with callbacks=gradient_accumulation; give a share of the run, such as "
                f"{key}.start=0.75"
            )
