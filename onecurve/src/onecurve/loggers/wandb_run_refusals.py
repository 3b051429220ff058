"""What Weights & Biases cannot do without."""

import netrc
import os
from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be reached."""
    if run.get(f"{key}.offline") is False and not _has_key():
        yield (
            f"{key}.offline=false: there is no key for Weights & Biases; run `wandb login` or "
            f"set WANDB_API_KEY, or use {key}.offline=true"
        )


def _has_key() -> bool:
    """Whether it answers without asking for a key."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
