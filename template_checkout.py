"""What this checkout of the template is: its commit, its address, and the library in it, packed.

A project depends on a released library by its version alone. A checkout that is no release has no
such version, so its bakes carry the library as an sdist in `vendor/`. It is packed by the standard
library: offline, in a moment, and with the same bytes each time.
"""

import gzip
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent
LIBRARY = TEMPLATE / "onecurve"
PROJECT = TEMPLATE / "{{cookiecutter.project_slug}}"
# What a starter takes from the starter images, whose files are written once.
FROM_IMAGES = {
    "diffusion": (
        "src/{package}/data/digits.py",
        "src/{package}/data/files.py",
        "src/{package}/data/images.py",
        "src/{package}/data/torchvision_sets.py",
    ),
    "segmentation": (
        "configs/model/lenet.yaml",
        "src/{package}/data/digits.py",
        "src/{package}/data/files.py",
        "src/{package}/data/images.py",
        "src/{package}/models/lenet.py",
    ),
}
# In a project: copies of what was there before it is baked over.
ASIDE = Path(".before-the-bake")
# Drawings are on the site, and the changelog is in the release notes.
PACKED = ("LICENSE", "README.md", "pyproject.toml", "docs", "src")
LEFT_OUT = re.compile(r"pictures|__pycache__|\.DS_Store|.*\.(pyc|egg-info|swp)|.*~")
# Zip files, such as the wheel that is built of this, know no year before.
MODIFIED = 315_532_800  # 1980-01-01


def library_version() -> str:
    """The version of a release; elsewhere with the commit as its label, such as 0.2.0+g21a90cb."""
    text = (LIBRARY / "pyproject.toml").read_text(encoding="utf-8")
    version: str = re.findall(r'^version = "(.+)"$', text, re.MULTILINE)[0]
    commit = git("rev-parse", "--short=7", "HEAD")
    changed = bool(git("status", "--porcelain", "--", str(LIBRARY)))
    if not changed and f"v{version}" in git("tag", "--points-at", "HEAD").splitlines():
        return version
    label = f"g{commit}" if commit else "archive"  # of GitHub, or another without git's folder
    return f"{version}+{label}{'.dirty' if changed else ''}"


def archive_name() -> str:
    """The file in a project's `vendor/`; empty where it depends on a release."""
    version = library_version()
    return f"onecurve-{version}.tar.gz" if "+" in version else ""


def _kind(member: tuple[str, bytes]) -> tuple[str, str, list[bytes], str]:
    path, lines = Path(member[0]), member[1].splitlines()
    imports = sorted(line for line in lines if line.startswith(b"from ."))
    return path.suffix, path.parent.as_posix(), imports, path.name


def write_archive(file: Path) -> None:
    """Pack the library of this checkout, under its full version."""
    version = library_version()
    text = (LIBRARY / "pyproject.toml").read_text(encoding="utf-8")
    own = re.sub(r'^version = ".+"$', f'version = "{version}"', text, count=1, flags=re.MULTILINE)
    own = own.partition("\n[tool.ruff]")[0]  # settings of tools that look at the sources are last
    about = f"Metadata-Version: 2.1\nName: onecurve\nVersion: {version}\n"
    contents = {path.relative_to(LIBRARY).as_posix(): path.read_bytes() for path in packed_files()}
    contents |= {"pyproject.toml": own.encode(), "PKG-INFO": about.encode()}
    with (
        file.open("wb") as packed,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        # What is alike side by side, of which gzip makes less: kind, folder, imports.
        for name, content in sorted(contents.items(), key=_kind):
            member = tarfile.TarInfo(f"onecurve-{version}/{name}")
            member.size, member.mtime = len(content), MODIFIED
            archive.addfile(member, io.BytesIO(content))


def packed_files() -> Iterator[Path]:
    """What the archive holds, without what tools have left in the checkout."""
    for name in PACKED:
        for path in [LIBRARY / name, *(LIBRARY / name).rglob("*")]:
            parts = path.relative_to(LIBRARY).parts
            if path.is_file() and not any(map(LEFT_OUT.fullmatch, parts)):
                yield path


def readme_of(starter: str) -> Path:
    """A file of every bake that no project keeps: its own README takes it in."""
    return Path("starters", starter, "README.md")


def from_images(package: str, starter: str) -> list[str]:
    """Files that a starter takes from the starter images, relative to both and to the project."""
    return [name.format(package=package) for name in FROM_IMAGES.get(starter, ())]


def places(package: str, starter: str = "") -> set[str]:
    """What a bake writes, relative to the project; with a starter, also where its files end up."""
    files = [path for path in PROJECT.rglob("*") if path.is_file()]
    names = [path.relative_to(PROJECT).as_posix() for path in files]
    names = [name.replace("{{cookiecutter.package_name}}", package) for name in names]
    if not starter:
        return set(names)
    of_starter = f"starters/{starter}/"
    moved = [name.removeprefix(of_starter) for name in names if name.startswith(of_starter)]
    moved += from_images(package, starter)
    return {*names, *moved, ".cruft.json", f"vendor/{archive_name()}"}


def cruft_state(typed: str, answers: Mapping[str, str]) -> dict[str, object] | None:
    """What `cruft update` has to know: where the template lies, its commit, what was answered.

    The address is the one that this checkout was cloned from, or else the one that was typed. Only
    the checkout is asked: a bake needs no network.

    Returns:
        None for a template from an archive, whose commit nobody knows.
    """
    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    # A path such as "." is not from here: Cookiecutter renders in a folder of the template.
    is_path = ":" not in typed or Path(typed).exists()
    address = git("config", "remote.origin.url") or (str(TEMPLATE) if is_path else typed)
    # Without a login or token that the address may hold.
    address = re.sub(r"(?<=://)[^/@]*@", "", address)
    return {
        "template": address,
        "commit": commit,
        "checkout": None,
        "context": {"cookiecutter": {**answers, "_template": address, "_commit": commit}},
        "directory": None,
    }


def git(*arguments: str) -> str:
    """What git prints about this checkout; nothing where it is none, or there is no git."""
    if not (TEMPLATE / ".git").exists():  # a repository around it says nothing of it
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(TEMPLATE), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
