"""What this project's own classes take: asked before anything is imported."""

from typing import Any, Literal

from pydantic import Field

from onecurve import Config
from onecurve.app.config.data import Images
from onecurve.app.config.optim import Plateau


class Digits(Images):
    samples: int
    val_size: int
    test_size: int
    split_seed: int


class Network(Config):
    in_channels: int
    image_size: int
    num_classes: int


class Perceptron(Network):
    hidden: list[int]


class Initialize(Config):
    weight: Any = None


class Classification(Config):
    num_classes: int
    monitor: str = "val/acc"
    mode: Literal["min", "max"] = "max"


class Optimizer(Config, extra="allow"):
    lr: float = Field(gt=0)
    betas: list[float] = Field([0.9, 0.999])
    eps: float = Field(1e-8, ge=0)
    weight_decay: float = Field(0, ge=0)
    momentum: float = Field(0, ge=0, le=1)


class Cosine(Config):
    warmup: float


MODELS = {
    "digits.Digits": Digits,
    "models.initialize": Initialize,
    "models.lenet": Network,
    "models.mlp": Perceptron,
    "optimizers.adamw": Optimizer,
    "optimizers.sgd": Optimizer,
    "schedulers.cosine": Cosine,
    "schedulers.plateau": Plateau,
    "task.Classification": Classification,
}
