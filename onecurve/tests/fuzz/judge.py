"""What is wrong with what a command has done: tracebacks, leftovers, wrong acceptances."""

import csv
import inspect
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from hydra.utils import get_object
from lightning.pytorch import Trainer

from onecurve.app.run.interpolation import dotted

from .command import Done

KINDS = ("traceback", "leftover", "wrong acceptance")


def judge(done: Done, folder: Path, wrong: bool, trains: bool = True) -> list[tuple[str, str]]:
    """What is wrong, each as its kind and some words; nothing if all is as it should be.

    Args:
        done: What came of the command.
        folder: Where it was run.
        wrong: Whether it must be refused.
        trains: Whether it is a training run, whose record tells how it was configured.
    """
    found = [("traceback", words) for words in _not_one_line(done)]
    if done.status == 0:
        if wrong:
            return [*found, ("wrong acceptance", "it cannot be right")]
        if not trains:
            return found
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
    """What an accepted run shows not to have been right: its record, against real signatures."""
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
    yield from (f"train/loss={value}" for value in _losses(runs[0]) if not math.isfinite(value))
    for key, value in dotted(config):
        # One that a person has added means something to that person alone.
        if isinstance(value, float) and math.isnan(value) and not key.startswith("new"):
            yield f"{key}=nan"
    trainer = dict(config["trainer"])
    if trainer["num_nodes"] == "auto":  # ours, not Lightning's
        del trainer["num_nodes"]
    yield from _against(Trainer, "trainer", trainer)
    for key, node in dotted(config):
        if isinstance(node, Mapping) and "_target_" in node:
            own = {name: value for name, value in node.items() if not name.startswith("_")}
            about = ("name", "processes") if key == "strategy" else ()
            own = {name: value for name, value in own.items() if name not in about}
            yield from _against(get_object(node["_target_"]), key, own)


def _losses(run: Path) -> Iterator[float]:
    if not (run / "metrics.csv").exists():
        return
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get("train/loss"):
                yield float(row["train/loss"])


def _against(target: Any, key: str, given: Mapping[str, Any]) -> Iterator[str]:
    """What the annotations of what was called do not allow."""
    function = target.__init__ if inspect.isclass(target) else target
    parameters = inspect.signature(function).parameters
    open_ended = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        hints = {}
    for name, value in given.items():
        if name not in parameters:
            if not open_ended:
                yield f"{key}.{name} is no argument"
        elif name in hints and not _is(hints[name], value):
            yield f"{key}.{name}={value!r} is no {hints[name]}"


def _is(hint: Any, value: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_is(each, value) for each in arguments)
    if origin is Literal:
        return value in arguments
    if hint in (None, type(None)):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        if isinstance(value, float):  # the model makes 3 of 3.0
            return value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, bool)
    if hint is str:
        # A name may look like a number.
        return isinstance(value, str | int | float)
    if origin in (list, Sequence) and arguments:
        return isinstance(value, list) and all(_is(arguments[0], each) for each in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    # What else there is, a configuration does not hold as it is.
    return value is not None or hint is Any
