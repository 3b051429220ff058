"""Models of `optimizer`, `scheduler` and `init`, one for each function.

Further keys are passed to a class of PyTorch's, which validates them when it is built.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from ...config_model import Config
from .groups import file_or_address

Share = Annotated[float, Field(ge=0, le=1)]
WEIGHTS = "a file with weights, such as runs/.../checkpoints/best.ckpt"


class Optimizer(Config, extra="allow"):
    """An optimizer of torch.optim, or any other; further keys are passed to its class."""

    algorithm: str = Field(description="Dotted name of the class, such as torch.optim.AdamW.")
    lr: float = Field(gt=0, description="Learning rate.")
    lr_scale: Mapping[str, Any] = Field(
        description="Factors of the learning rate by prefixes of parameter names; the longest "
        "prefix counts, and null stands for no factor."
    )
    weight_decay: float = Field(0, ge=0, description="How much weights shrink in each step.")
    momentum: float = Field(0, ge=0, le=1, description="Share of the last step that is kept.")
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        [0.9, 0.999], description="Shares of the running averages that are kept."
    )
    eps: float = Field(1e-8, ge=0, description="Added to denominators.")
    alpha: float = Field(0.99, ge=0, description="Share of the running average that is kept.")
    foreach: bool | None = Field(None, description="Use kernels over lists of parameters.")
    fused: bool | None = Field(None, description="Use a fused kernel; null for torch's choice.")
    nesterov: bool = Field(False, description="Nesterov's momentum.")
    capturable: bool = Field(False, description="Allow capturing steps in a CUDA graph.")


class NoScheduler(Config):
    """The learning rate stays as it is."""


class Step(Config, extra="allow"):
    """Multiply by a factor every n epochs: StepLR."""

    step_size: int = Field(ge=1, description="Epochs.")
    gamma: float = Field(0.1, description="The factor.")


class Plateau(Config, extra="allow"):
    """Fall when the task's metric no longer improves: ReduceLROnPlateau."""

    factor: float = Field(0.1, lt=1, description="What the learning rate is multiplied by.")
    patience: int = Field(10, ge=0, description="Epochs without improvement.")


class OneCycle(Config, extra="allow"):
    """Rise to the optimizer's learning rate and fall again: OneCycleLR."""

    pct_start: Share = Field(0.3, description="Share of the run in which it rises.")
    div_factor: float = Field(25, description="Highest learning rate divided by the first.")
    final_div_factor: float = Field(1e4, description="First learning rate divided by the last.")


class Cosine(Config):
    """A linear warm-up, then half a cosine down to the end of the run, step by step."""

    warmup: Share = Field(description="Share of the run in which the learning rate rises.")
    final: float = Field(ge=0, description="Last learning rate, as a share of the highest.")


class LoadWeights(Config):
    """Start from the weights of a checkpoint: all that match by name and shape."""

    file: Annotated[Any, file_or_address(WEIGHTS)] = Field(
        description="A checkpoint or state_dict."
    )
