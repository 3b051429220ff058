"""The image of a project for Kubernetes: built, and run as user ids that it does not know.

Without Docker: buildah builds it from the project's Dockerfile, in chroot isolation. Where no
registry can be reached, the base image is made of Debian's packages by mmdebstrap; where PyTorch's
own index cannot, torch is the one of the package index, with CUDA.

    python benchmarks/image.py [BASE_IMAGE]

Prints the size of the image and how each run in it ends. Needs root, buildah and mmdebstrap, the
network, some ten minutes, and up to 30 GiB of disk for as long as it runs; it says so where it
cannot run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent.parent
PACKAGES = ("buildah", "mmdebstrap")
DEBIAN = "bookworm"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu/"
CERTIFICATES = Path("/etc/ssl/certs")
GIB = 2**30
DISK = 30 * GIB
# What must not be carried into an image.
LEFT_OUT = ("runs/a/b", "data/c", ".venv/d", ".git/e", ".env", "src/__pycache__/f", "g.ckpt")
RUN = ("python", "train.py", "trainer.max_epochs=2")


def why_not(folder: Path) -> str | None:
    """Why nothing can be built here, or None."""
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.getuid() != 0:
        return "only root may build in chroot isolation"
    if shutil.disk_usage(folder).free < DISK:
        return f"{DISK / GIB:.0f} GiB of disk must be free in {folder}"
    return None


def said(*command: str | Path) -> str:
    """What a command prints; if it fails, all that it had to say.

    Raises:
        SystemExit: If it fails.
    """
    typed = [str(word) for word in command]
    done = subprocess.run(typed, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"image: {' '.join(typed)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.strip()


@contextmanager
def storage() -> Iterator[tuple[Path, list[str | Path]]]:
    """A folder with buildah's own images in it, of which nothing stays."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        os.environ["TMPDIR"] = str(folder / "tmp")  # where it keeps what a cache mount holds
        buildah: list[str | Path] = ["buildah", "--storage-driver", "overlay"]
        buildah += ["--root", folder / "images", "--runroot", folder / "state"]
        try:
            yield folder, buildah
        finally:
            for each in (["rm", "--all"], ["rmi", "--all", "--force"]):
                subprocess.run([*buildah, *each], capture_output=True, check=False)


def base_image(folder: Path, buildah: list[str | Path]) -> str:
    """The one of the Dockerfile, or Debian with its Python."""
    published = "docker.io/library/python:3.11-slim"
    pulled = subprocess.run([*buildah, "pull", published], capture_output=True, check=False)
    if pulled.returncode == 0:
        return published
    packages = "--include=python3,python3-venv,ca-certificates"
    said("mmdebstrap", "--quiet", "--variant=minbase", packages, DEBIAN, folder / "base.tar")
    (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    said(*buildah, "bud", "--isolation", "chroot", "--tag", "localhost/base", folder)
    (folder / "base.tar").unlink()
    return "localhost/base"


def torch_backend() -> str:
    """`cpu` if PyTorch's index can be reached; empty for what the package index has."""
    try:
        with urllib.request.urlopen(TORCH_INDEX, timeout=10):
            return "cpu"
    except OSError:
        return ""


def main() -> None:
    """Bake, build, look inside, run."""
    if reason := why_not(Path(tempfile.gettempdir())):
        print(f"image: not built: {reason}")
        return
    with storage() as (folder, buildah):
        bake = [sys.executable, "-m", "cookiecutter", TEMPLATE, "--no-input", "--default-config"]
        said(*bake, "--output-dir", folder, "cluster=kubernetes")
        project = folder / "my-project"
        for name in LEFT_OUT:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).touch()
        base = sys.argv[1] if len(sys.argv) > 1 else base_image(folder, buildah)
        torch = torch_backend()
        print(f"base image: {base}; torch: {torch or 'of the package index'}", flush=True)
        options = ["--build-arg", f"BASE={base}", "--build-arg", f"TORCH={torch}"]
        # Of a machine whose network has certificates of its own.
        options += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] * CERTIFICATES.is_dir()
        said(*buildah, "bud", "--isolation", "chroot", *options, "--tag", "image", project)
        print(f"size: {said(*buildah, 'images', '--format', '{{.Size}}', 'localhost/image')}")
        container = said(*buildah, "from", "localhost/image")
        inside = [*buildah, "run", "--isolation", "chroot"]
        names = said(*inside, container, "find", "/app").splitlines()
        carried = [name for name in LEFT_OUT if f"/app/{name}" in names]
        print(f"files in /app: {len(names)}; carried by mistake: {carried or 'none'}", flush=True)
        for user in ("1000", "4711"):
            # A pod of its own: what the first one has made is not the second's.
            pod = said(*buildah, "from", "localhost/image")
            shown = said(*inside, "--user", user, pod, *RUN)
            print(f"as user {user}:", *shown.splitlines()[-12:], sep="\n  ", flush=True)
        if carried:
            sys.exit(1)


if __name__ == "__main__":
    main()
