"""Models of the library's data modules and transforms, one for each class."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ...config_model import Config


def _transforms(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reject transforms without a class; null leaves one out."""
    for name, entry in entries.items():
        if entry is not None and not (isinstance(entry, Mapping) and "_target_" in entry):
            raise ValueError(
                f"{name} has no class; add +data.augment.{name}._target_=..., or leave it out"
            )
    return entries


class Images(Config):
    """Keys of every data module of images."""

    root: str | None = Field(description="Folder of the files; not every data set has one.")
    class_names: list[str] = Field(description="What the labels 0, 1, ... mean.")
    num_classes: int = Field(ge=2, description="Length of class_names.")
    channels: int = Field(ge=1, description="1 for grey, 3 for colour.")
    image_size: int = Field(ge=1, description="Height and width of the images, in pixels.")
    resize: Literal["pad", "stretch"] = Field(
        description="Pad to keep the proportions, or stretch."
    )
    batch_size: int = Field(ge=1, description="Samples per training step, over all processes.")
    num_workers: int = Field(ge=0, description="Processes that read batches; 0 for none.")
    mean: list[float] = Field(description="Mean of each channel, for values in 0..1.")
    std: list[float] = Field(description="Standard deviation of each channel.")
    augment: Annotated[Mapping[str, Any], AfterValidator(_transforms)] = Field(
        description="Transforms of training batches, by name."
    )


class Digits(Images):
    """1,797 grey images of 8 x 8 pixels from scikit-learn."""

    val_size: int = Field(ge=1, description="Images held out for validation.")
    test_size: int = Field(ge=1, description="Images held out for the test.")
    split_seed: int = Field(description="Seed of the split.")


class TorchvisionImages(Images):
    """A data set of torchvision, downloaded if its files are missing, and kept in memory."""

    name: str = Field(description="Name of the class in torchvision.datasets.")
    val_size: int = Field(description="Images of the training set held out for validation.")
    split_seed: int = Field(description="Seed of the split.")


class RandomCrop(Config):
    """Pad each image with black, then crop it to its old size at a random place."""

    padding: int = Field(description="Black pixels on each side.")


class RandomHorizontalFlip(Config):
    """Flip each image, left to right, with some probability."""

    p: float = Field(0.5, description="The probability.")
