"""Tries a damaged checkpoint in every command that reads one, and judges what comes of it."""

from collections.abc import Iterator
from pathlib import Path

from .command import empty, run
from .files import MARKER, Files, means_the_same
from .judge import judge
from .lines import SHORT

# Of other people's files these may be gone on with, or begun from: where they hold what is needed.
MAY_BE_READ = ("plain", "legacy", "parts_missing", "other_kinds")


def commands(file: str) -> list[tuple[str, list[str]]]:
    """What reads a checkpoint."""
    return [
        ("train.py", [*SHORT, f"resume={file}"]),
        ("train.py", [*SHORT, f"init={file}"]),
        ("evaluate.py", [f"checkpoint={file}", "trainer.accelerator=cpu"]),
        ("predict.py", [f"checkpoint={file}", "predict.images=images", "trainer.accelerator=cpu"]),
    ]


def try_file(
    files: Files, scripts: Path, folder: Path, number: int
) -> Iterator[tuple[str, str, str]]:
    """Draw a file, and give it to one of the commands.

    Args:
        files: Where it is drawn.
        scripts: Where the commands are.
        folder: An empty folder but for `images`.
        number: Of the case: the commands take turns.

    Yields:
        What is wrong: its kind, the command, and some words.
    """
    file = folder / "given.ckpt"
    kind = files.draw(file)
    script, words = commands(file.name)[number % 4]
    keep = ("given.ckpt", "images")
    done = run(scripts / script, words, folder, keep)
    typed = f"{kind}: {script} {words[-1 if script == 'train.py' else 0]}"
    if (folder / MARKER).exists():
        yield "wrong acceptance", typed, "code in it was run"
    for what, about in judge(done, folder, wrong=False, trains=script == "train.py"):
        yield what, typed, about
    if done.status == 0 and kind not in MAY_BE_READ and not means_the_same(file, files.content):
        yield "wrong acceptance", typed, "it was read, and holds something else"
    file.unlink()
    empty(folder, keep)
