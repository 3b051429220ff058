"""What is wrong with what a command has done: tracebacks, leftovers, wrong acceptances."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import yaml

from onecurve.app.run.interpolation import dotted
from onecurve.testing.runs import column

from .command import Done


def judge(done: Done, folder: Path, wrong: bool) -> list[tuple[str, str]]:
    """What is wrong, each as its kind and some words; nothing if all is as it should be.

    Args:
        done: What came of a training run, whose record tells how it was configured.
        folder: Where it was run.
        wrong: Whether it must be rejected.
    """
    found = [("traceback", words) for words in _not_one_line(done)]
    if done.status == 0:
        if wrong:
            return [*found, ("wrong acceptance", "it cannot be right")]
        return found + [("wrong acceptance", words) for words in _not_right(folder)]
    # What had begun to train keeps its directory, with the record of how it ended.
    if done.left and not list(folder.rglob("metrics.csv")):
        found.append(("leftover", f"{len(done.left)} files and folders, such as {done.left[0]}"))
    return found


def _not_one_line(done: Done) -> Iterator[str]:
    lines = [line for line in done.err.splitlines() if line.strip()]
    if done.status is None:
        yield "it did not end"
    elif "Traceback (most recent call last)" in done.err:
        yield lines[-1]
    elif done.status not in (0, 1, 2):
        yield f"status {done.status}: {lines[-1] if lines else ''}"
    elif done.status and len(lines) != 1:
        yield f"{len(lines)} lines of refusal: {' / '.join(lines)[:300]}"


def _not_right(folder: Path) -> Iterator[str]:
    """What an accepted run shows not to have been right."""
    runs = [path.parent for path in folder.rglob("metrics.json")]
    if len(runs) != 1:
        yield f"{len(runs)} run directories"
        return
    config = yaml.safe_load((runs[0] / "config.yaml").read_text())
    facts = json.loads((runs[0] / "metrics.json").read_text())
    if facts["status"] != "finished":
        yield f"it ended as {facts['status']}"
    if facts.get("strategy") != config["strategy"]["name"]:
        yield f"it ran under strategy={facts.get('strategy')}"
    losses = column(runs[0], "train/loss") if (runs[0] / "metrics.csv").exists() else []
    yield from (f"train/loss={value}" for value in losses if not math.isfinite(value))
    for key, value in dotted(config):
        # One that a person has added means something to that person alone.
        if isinstance(value, float) and math.isnan(value) and not key.startswith("new"):
            yield f"{key}=nan"
