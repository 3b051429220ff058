"""What an initialisation of weights cannot go together with."""

from collections.abc import Iterator

from onecurve.composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why weights that were learned would be lost."""
    weights = run.get("model.weights")
    if weights is not None and run.get(f"{key}.weight") is not None:
        yield (
            f"model.weights={weights}: init would overwrite pretrained weights; "
            "use init=default, or model.weights=null"
        )
