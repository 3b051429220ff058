"""Types of values that several models use."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ..checkpoint import remote
from ..config_model import Words, existing_path, missing, text

Group = Mapping[str, Any]  # a group, whose keys have a model of their own
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Time = Annotated[
    str, Field(pattern=r"^\d+:\d\d:\d\d:\d\d$"), Words("days:hours:minutes:seconds", "00:12:00:00")
]
Folder = Annotated[str, Field(pattern=r"\S"), Words("a folder", "runs")]


def _address(value: str) -> str:
    if reason := remote.refusal(value):
        raise ValueError(reason)
    return value


Address = Annotated[str, AfterValidator(_address)]


def file_or_address(wanted: str, damage: Callable[[str], str | None] = missing) -> AfterValidator:
    """Validate that a value is an existing, intact file, or an address, which is not read yet.

    Args:
        wanted: What an error asks for, with an example.
        damage: Why the file at a path cannot be used; None if it can.
    """

    def check(value: Any) -> Any:
        is_address = value is not None and remote.is_address(text(value))
        return _address(text(value)) if is_address else existing_path(value, wanted, damage)

    return AfterValidator(check)
