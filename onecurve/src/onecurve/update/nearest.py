"""The commit of the template that a project most likely comes from, by its files."""

from ..errors import UserError
from .project import Project
from .template import Template

PACKAGE = "{{cookiecutter.package_name}}"
ENOUGH = 10


def nearest(template: Template, project: Project) -> tuple[str, dict[str, int]]:
    """The oldest commit that shares the most files with a project.

    Of commits that differ only in what is rendered, the oldest: what it has not is added, while
    what a later one has, and the project has not, would be taken for deleted.

    Returns:
        The commit, and how many files the project has of each of its starters.

    Raises:
        UserError: If none has much in common with it.
    """
    ours, package = project.blobs(), project.package()
    best, most = "", (0, 0)
    there: dict[str, str] = {}
    for commit, changed in template.history():
        there |= changed
        if not changed and best:
            continue
        places = _places({path: blob for path, blob in there.items() if blob}, package)
        same = sum(ours.get(path) in blobs for path, blobs in places.items())
        likeness = (same, -sum(path not in ours for path in places))
        if likeness > most:  # the first of equals stays
            best, most = commit, likeness
    if most[0] < ENOUGH:
        raise UserError(
            f"{template.address}: no commit there resembles this project; make update TEMPLATE= "
            "needs the template that made it"
        )
    starters: dict[str, int] = {}
    for path, blob in template.blobs(best).items():
        first, _, rest = path.partition("/")
        if first == "starters":
            name, _, place = rest.partition("/")
            same = ours.get(place.replace(PACKAGE, package)) == blob
            starters[name] = starters.get(name, 0) + same
    return best, starters


def _places(blobs: dict[str, str], package: str) -> dict[str, set[str]]:
    """The contents that a file of a project may have; starters share some names."""
    places: dict[str, set[str]] = {}
    for path, blob in blobs.items():
        place = path.split("/", 2)[-1] if path.startswith("starters/") else path
        places.setdefault(place.replace(PACKAGE, package), set()).add(blob)
    return places
