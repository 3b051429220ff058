"""What `strategy=dp` cannot run."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """What is made of layers is not copied with them to other GPUs, in every step."""
    if run.accelerator == "cpu" or run.devices < 2:
        return
    asked = {
        f"{key}.activation_checkpointing": run.get(f"{key}.activation_checkpointing"),
        "compile": run.get("compile"),
    }
    for name, value in asked.items():
        if value not in (None, "none", False):
            yield f"{name}={value}: not for the copies that dp makes on GPUs; use strategy=ddp"
