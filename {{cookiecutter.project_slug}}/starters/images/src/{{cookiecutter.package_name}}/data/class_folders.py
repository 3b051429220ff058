"""The classes of an image folder, read before torch is imported."""

from pathlib import Path

from onecurve.errors import UserError


def class_folders(root: str) -> list[str]:
    """Names of an image folder's class folders: those in root/train if it exists, else in root.

    Raises:
        UserError: there is no such folder, or no folder in it.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"data.root={root}: no such folder; give one folder of images a class, "
            "for example data.root=photos with photos/cat/ and photos/dog/, or use data=digits"
        )
    folder = folder / "train" if (folder / "train").is_dir() else folder
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise UserError(
            f"data.root={root}: no class folder in it; give one folder of images a class, "
            "for example photos/cat/ and photos/dog/, or use data=digits"
        )
    return names
