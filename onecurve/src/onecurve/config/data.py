"""What the library's data modules take: models of `data`, by class."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ..config_model import Config


def _transforms(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """That each is an object; null is none."""
    for name, entry in entries.items():
        if entry is not None and not (isinstance(entry, Mapping) and "_target_" in entry):
            raise ValueError(
                f"{name} is no object; say of which class it is: "
                f"+data.augment.{name}._target_=..., or leave it out"
            )
    return entries


class Images(Config):
    """What every data module of images takes."""

    root: str | None = Field(description="Folder of the files; not every data set has one.")
    class_names: list[str] = Field(description="What the labels 0, 1, ... mean.")
    num_classes: int = Field(ge=2, description="Length of class_names.")
    channels: int = Field(ge=1, description="1 for grey, 3 for colour.")
    image_size: int = Field(ge=1, description="Height and width of what is delivered, in pixels.")
    resize: Literal["pad", "stretch"] = Field(description="Keep the proportions or not.")
    batch_size: int = Field(ge=1, description="Samples in a training step, over all processes.")
    num_workers: int = Field(ge=0, description="Processes that read batches; 0 for none.")
    mean: list[float] = Field(description="Of each channel, of values in 0..1.")
    std: list[float] = Field(description="Likewise.")
    augment: Annotated[Mapping[str, Any], AfterValidator(_transforms)] = Field(
        description="Transforms of training batches, by name."
    )


class Digits(Images):
    """1,797 grey images of 8 x 8 pixels, which come with scikit-learn."""

    val_size: int = Field(ge=1, description="Images held out for validation.")
    test_size: int = Field(ge=1, description="Images held out for the test.")
    split_seed: int = Field(description="Seed of the split.")


class TorchvisionImages(Images):
    """A data set of torchvision, downloaded where its files are missing, kept in memory."""

    name: str = Field(description="Class of torchvision.datasets.")
    val_size: int = Field(description="Images of the training set held out for validation.")
    split_seed: int = Field(description="Seed of the split.")


class RandomCrop(Config):
    """Surround each image with black, then cut a piece of its old size out."""

    padding: int = Field(description="Pixels of black on each side.")


class RandomHorizontalFlip(Config):
    """Mirror each image, left to right, with some probability."""

    p: float = Field(0.5, description="The probability.")
