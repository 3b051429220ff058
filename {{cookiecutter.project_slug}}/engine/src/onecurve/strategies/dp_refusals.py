"""What `strategy=dp` cannot run."""

from collections.abc import Iterator

from ..plan import Plan


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """What is made of layers is not copied with them to other GPUs, in every step."""
    if plan.accelerator == "cpu" or plan.devices < 2:
        return
    asked = {
        f"{key}.activation_checkpointing": plan.get(f"{key}.activation_checkpointing"),
        "compile": plan.get("compile"),
    }
    for name, value in asked.items():
        if value not in (None, "none", False):
            yield f"{name}={value}: not for the copies that dp makes on GPUs; use strategy=ddp"
