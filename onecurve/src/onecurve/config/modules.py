"""Finds the files of packages and modules without importing them."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def folders_of(package: str) -> list[Path] | None:
    """The folders of a top-level package, or the file of a top-level module; None if missing."""
    try:
        spec = find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    return [Path(folder) for folder in folders] if folders else [Path(spec.origin or "")]


@cache
def file_of(module: str) -> Path | None:
    """The file of a module; None if it is missing."""
    top, *rest = module.split(".")
    paths = [folder.joinpath(*rest) for folder in folders_of(top) or ()]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)
