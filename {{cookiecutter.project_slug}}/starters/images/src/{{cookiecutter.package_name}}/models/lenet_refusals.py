"""What LeNet-5 cannot be given."""

from collections.abc import Iterator

from onecurve.composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot read the images."""
    size = run.get("data.image_size")
    if size != 32:
        yield (
            f"data.image_size={size}: model=lenet reads 32x32 images; "
            "use data.image_size=32, or model=mlp"
        )
