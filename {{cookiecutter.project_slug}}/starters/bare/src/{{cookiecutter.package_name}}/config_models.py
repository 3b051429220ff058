"""Models of the arguments of this project's classes, validated before torch is imported.

A class without a model here validates its arguments when it is built.
"""

from onecurve import Config
from pydantic import Field


class Data(Config):
    num_samples: int = Field(ge=10)
    num_features: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    seed: int


class Network(Config):
    in_features: int
    width: int = Field(ge=1)


MODELS = {
    "data.mine.Mine": Data,
    "models.mine.mine": Network,
}
