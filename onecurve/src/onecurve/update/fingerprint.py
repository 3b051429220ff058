"""A folder's files as one number; also run by itself, by any Python, when a project is baked."""

import hashlib
from pathlib import Path


def fingerprint(root: Path, files: "list[Path]") -> str:
    """One SHA-256 over names and contents, whatever the order of `files`."""
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
