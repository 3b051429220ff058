"""Files of packages and modules, found without importing them, and so maybe torch."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def folders_of(package: str) -> list[Path] | None:
    """Where a package without a dot in its name is, or a module's file; None if not there."""
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
    """The file of a module; None if there is none."""
    top, *rest = module.split(".")
    paths = [folder.joinpath(*rest) for folder in folders_of(top) or ()]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)
