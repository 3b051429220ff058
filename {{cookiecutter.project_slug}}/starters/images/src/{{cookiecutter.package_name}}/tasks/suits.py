"""Which data and networks suit which task: asked before a run begins, and before torch is there."""

from collections.abc import Iterator

from onecurve.composed_run import ComposedRun

# The data's `targets`, if they say so; whether the network answers for each pixel.
WANTED = {
    "classification": (None, False, "data=digits model=lenet"),
    "segmentation": ("masks", True, "data=scenes model=unet, or experiment=segmentation"),
    "multi_label": ("labels", False, "data=scene_labels model=lenet, or experiment=multi_label"),
}
NETWORKS = {"unet": True, "lenet": False, "mlp": False, "torchvision_classifier": False}


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why these cannot be trained together. Data and networks of your own are left alone."""
    task = str(run.get("task._target_")).split(".")[-2]
    targets, of_pixels, instead = WANTED[task]
    network = str(run.get("model._target_")).rpartition(".")[2]
    if run.get("data.targets") != targets:
        yield f"task={task}: these data have other targets; use {instead}"
    elif NETWORKS.get(network, of_pixels) != of_pixels:
        kind = "each pixel" if not of_pixels else "an image as a whole"
        yield f"task={task}: this network answers for {kind}; use {instead}"
