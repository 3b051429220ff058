"""Which runs of a project lie outside its folder of runs: a list in that folder."""

import json
from pathlib import Path

FILE = ".elsewhere"


def note(run_dir: Path, runs: Path) -> None:
    """Add a run to the list, unless it lies in the folder of runs."""
    if run_dir.is_relative_to(runs) or run_dir in listed(runs):
        return
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / FILE).open("a") as file:
        file.write(json.dumps(str(run_dir)) + "\n")


def forget(run_dir: Path, runs: Path) -> None:
    """Take a run from the list, and with the last one the list itself."""
    left = [path for path in listed(runs) if path != run_dir]
    if left == listed(runs):
        return
    if left:
        (runs / FILE).write_text("".join(json.dumps(str(path)) + "\n" for path in left))
        return
    (runs / FILE).unlink()
    if not any(runs.iterdir()):
        runs.rmdir()


def listed(runs: Path) -> list[Path]:
    """The runs that were noted, oldest first; some may be gone."""
    try:
        lines = (runs / FILE).read_text().splitlines()
    except OSError:
        return []
    return [Path(json.loads(line)) for line in lines if line.endswith('"')]
