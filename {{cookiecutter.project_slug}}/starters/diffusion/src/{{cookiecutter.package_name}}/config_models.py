"""Models of the arguments of this project's classes, validated before torch is imported.

A class without a model here validates its arguments when it is built.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from onecurve import Config
from onecurve.app.config.data import Digits, Images, TorchvisionImages
from pydantic import Field

Count = Annotated[int, Field(ge=1)]


class InWords(Images):
    captions: list[str]
    synonyms: Mapping[str, Any]
    caption_length: Count


class DigitsInWords(InWords, Digits):
    pass


class TorchvisionInWords(InWords, TorchvisionImages):
    pass


class Network(Config):
    channels: int
    image_size: int
    caption_length: int
    width: Count
    words_width: int = Field(ge=4)
    blocks: Count


class Convolutions(Network):
    patch: Count


class Diffusion(Config):
    channels: int
    image_size: int
    caption_length: int
    monitor: str
    mode: Literal["min", "max"]
    prompts: list[str]
    times: Count = 100
    without_words: float = Field(0.1, ge=0, le=1)
    guidance: float = Field(2.0, ge=0)
    steps: Count = 20
    judged: int = Field(1000, ge=0)


MODELS = {
    "data.in_words.DigitsInWords": DigitsInWords,
    "data.in_words.TorchvisionInWords": TorchvisionInWords,
    "models.conv_denoiser.conv_denoiser": Convolutions,
    "models.denoiser.denoiser": Network,
    "tasks.diffusion.Diffusion": Diffusion,
}
