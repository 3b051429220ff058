"""Limits of where things are."""

from typing import Annotated, TypedDict

from ...limits import Pattern

Folder = Annotated[str, Pattern(r"[\s\S]*\S[\s\S]*", "a folder", "runs")]


class Limits(TypedDict, total=False):
    """By key."""

    root: Folder
    data: Folder
    runs: Folder
    run: Folder
