"""Models of the arguments of this project's classes, validated before torch is imported.

A class without a model here validates its arguments when it is built.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from onecurve import Config
from onecurve.app.composed_run import ComposedRun
from onecurve.app.config.data import Images
from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class ImageFolder(Images):
    in_memory: bool
    val_fraction: Fraction
    test_fraction: Fraction
    split_seed: int


class Scenes(Images):
    targets: Literal["masks", "labels"]
    most_digits: Count
    num_samples: Count
    num_val: Count
    num_test: Count
    held_out: list[Count]
    seed: int = Field(ge=0)


class Synthetic(Images):
    num_samples: int
    num_val: int
    num_test: int
    seed: int


class Task(Config):
    """A task, which checks that data and network fit. Your own classes are not checked."""

    num_classes: int
    monitor: str
    mode: Literal["min", "max"]

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse data and networks that do not fit the task."""
        task = str(run.get("task._target_")).split(".")[-2]
        targets, of_pixels, instead = WANTED[task]
        network = str(run.get("model._target_")).rpartition(".")[2]
        if run.get("data.targets") != targets:
            yield f"task={task}: the targets of these data do not fit the task; use {instead}"
        elif NETWORKS.get(network, of_pixels) != of_pixels:
            kind = "each pixel" if not of_pixels else "an image as a whole"
            yield f"task={task}: this network predicts labels of {kind}; use {instead}"


class Classification(Task):
    label_smoothing: float = Field(0, ge=0, le=1)


class Network(Config):
    in_channels: int
    num_classes: int


class LeNet(Network):
    image_size: int

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse images of another size."""
        if self.image_size != 32:
            yield (
                f"data.image_size={self.image_size}: model=lenet reads 32x32 images; "
                "use data.image_size=32, or model=mlp"
            )


class Perceptron(Network):
    image_size: int
    hidden: list[Count]


class ResNet(Network):
    name: str
    weights: str | None
    small_images: bool


class UNet(Network):
    width: Count
    depth: Count


class Initialize(Config):
    weight: Any

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse an initialization that would overwrite pretrained weights."""
        weights = run.get("model.weights")
        if weights is not None and self.weight is not None:
            yield (
                f"model.weights={weights}: init would overwrite pretrained weights; "
                "use init=default, or model.weights=null"
            )


# By task: the data's `targets`, if they say so; whether the network answers for each pixel.
WANTED = {
    "classification": (None, False, "data=digits model=lenet"),
    "segmentation": ("masks", True, "data=scenes model=unet, or experiment=segmentation"),
    "multi_label": ("labels", False, "data=scene_labels model=lenet, or experiment=multi_label"),
}
NETWORKS = {"unet": True, "lenet": False, "mlp": False, "torchvision_classifier": False}

MODELS = {
    "data.image_folder.ImageFolder": ImageFolder,
    "data.scenes.Scenes": Scenes,
    "data.synthetic.Synthetic": Synthetic,
    "models.initialization.initialize": Initialize,
    "models.lenet.lenet": LeNet,
    "models.mlp.mlp": Perceptron,
    "models.resnet.torchvision_classifier": ResNet,
    "models.unet.unet": UNet,
    "tasks.classification.Classification": Classification,
    "tasks.multi_label.MultiLabel": Task,
    "tasks.segmentation.Segmentation": Task,
}
