"""What was typed for each job, and which of it differs between the jobs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# How a job is run, not what it is.
IGNORED = ("sweep.trial", "resume")


def parse(lines: Any) -> dict[str, str]:
    """Overrides by key, as typed: ``+callbacks=ema`` and ``~callbacks.ema`` keep their sign."""
    found: dict[str, str] = {}
    for line in lines if isinstance(lines, list) else []:
        key, equals, value = str(line).partition("=")
        if key.startswith("hydra.") or key.lstrip("+~") in IGNORED:
            continue
        if not equals:
            value = "removed" if key.startswith("~") else ""
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def varying(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose text differs between jobs, in the order in which they were typed."""
    keys = dict.fromkeys(key for overrides in jobs for key in overrides)
    return [key for key in keys if len({overrides.get(key, "") for overrides in jobs}) > 1]


def as_number(text: str) -> float | None:
    """The finite number that a value is, if it is one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def shown(text: str, most: int = 200) -> str:
    """A value as a person reads it: long numbers are rounded, other texts cut."""
    number = as_number(text)
    if number is not None and len(text) > 8 and not text.lstrip("-").isdigit():
        return f"{number:.3g}"
    # Where a job has no override of a key that others override.
    text = text or "default"
    return text if len(text) <= most else text[: most - 1] + "…"


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, where no other key has the same; ``optimizer.lr`` becomes ``lr``."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    unique = [end for end in ends.values() if end and list(ends.values()).count(end) == 1]
    return {key: end if end in unique else key for key, end in ends.items()}


def label(overrides: Mapping[str, str], keys: Sequence[str], most: int = 200) -> str:
    """The values of some keys in one line, each cut at `most` letters: ``lr=0.01, seed=1``."""
    names = short_keys(keys)
    return ", ".join(f"{names[key]}={shown(overrides.get(key, ''), most)}" for key in keys)
