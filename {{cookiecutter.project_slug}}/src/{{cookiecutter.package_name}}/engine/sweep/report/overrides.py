"""What was typed for each job, and which of it differs between the jobs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# How a job is run, not what it is.
IGNORED = ("sweep.trial", "resume")
DEFAULT = "default"
"""What stands where a job has no override of a key that others override."""
LOGARITHMIC = 50.0
"""From this ratio of the largest to the smallest number on, their axis is logarithmic."""


def parse(lines: Iterable[Any]) -> dict[str, str]:
    """Overrides by key, as typed: ``+callbacks=ema`` and ``~callbacks.ema`` keep their sign."""
    found: dict[str, str] = {}
    for line in lines:
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


def shown(text: str) -> str:
    """A value as a person reads it; a search's long numbers are rounded."""
    number = as_number(text)
    if number is not None and len(text) > 8 and not text.lstrip("-").isdigit():
        return f"{number:.3g}"
    return text or DEFAULT


def as_number(text: str) -> float | None:
    """The finite number that a value is, if it is one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def logarithmic(numbers: Sequence[float]) -> bool:
    """Whether numbers belong on a logarithmic axis."""
    return min(numbers) > 0 and max(numbers) / min(numbers) >= LOGARITHMIC


def by_size(text: str) -> tuple[bool, float, str]:
    """What to sort values by: numbers first and as numbers, then the others by name."""
    number = as_number(text)
    return (number is None, number or 0.0, text)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, where no other key has the same; ``optimizer.lr`` becomes ``lr``."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {
        key: end if end and ends.count(end) == 1 else key
        for key, end in zip(keys, ends, strict=True)
    }


def shorter(text: str, most: int = 32) -> str:
    """The beginning of a text that is too long for its place."""
    return text if len(text) <= most else text[: most - 1] + "…"


def label(overrides: Mapping[str, str], keys: Sequence[str], most: int = 200) -> str:
    """The values of some keys in one line: ``lr=0.01, strategy=ddp``.

    Args:
        overrides: Texts by key.
        keys: Those to name.
        most: Letters of a value from which on it is cut.
    """
    names = short_keys(keys)
    values = (shorter(shown(overrides.get(key, "")), most) for key in keys)
    return ", ".join(f"{names[key]}={value}" for key, value in zip(keys, values, strict=True))
