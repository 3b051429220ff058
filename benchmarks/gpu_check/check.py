"""Check training on the GPU of this machine: see onecurve's page on it.

Every entry has ranks of its own, so that one that fails or hangs stops no other. What is left is
gpu_check.json with all of it, and gpu_check.md to read.
"""

import argparse
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import torch

from onecurve import machine
from onecurve.errors import UserError, in_short, stop
from onecurve.launch.agent import start_ranks
from onecurve.launch.context import RankFailed
from onecurve.launch.forkserver import warm_up
from onecurve.launch.process import redirect_output
from onecurve.launch.worker import RankOptions

from . import entries, large
from .entries import DRAWS_NOISE, Entry, matrix
from .loops import SETTINGS
from .page import GOOD, Result, paragraphs

SECONDS_OF_AN_ENTRY, SECONDS_OF_CODE = 60, 240
"""At most, of one that compiles nothing, and of one that does."""
LEAST = 5
"""Seconds that must be left for an entry to begin."""


def main(arguments: list[str] | None = None) -> int:
    """Check what is asked for.

    Returns:
        The exit status: 1 if a required entry did not pass.
    """
    asked = _parser().parse_args(arguments)
    device = asked.device if asked.device != "auto" else "cuda" if machine.count_gpus() else "cpu"
    if device == "cuda" and not machine.count_gpus():
        stop(UserError("--device cuda: no GPU is seen here; use --device cpu"))
    names = [*large.NAMES, *(entry.name for entry in matrix(device == "cuda"))]
    if asked.profile:
        names += [large.PROFILE, *large.CHANGES]
    if not any(_matches(name, asked.only) for name in names):
        only = " ".join(asked.only)
        stop(UserError(f"--only {only}: matches no entry; such as --only 'mlp ddp *'"))
    folder = Path(asked.out)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    found: list[Result] = []
    warm_up()
    for each in _checks(device, asked, folder / "logs", begun + 60 * asked.minutes):
        found.append(each)
        _write(folder, device, time.monotonic() - begun, found)
        reason = f": {each['reason']}" if each["reason"] else ""
        print(f"{each['seconds']:6.1f} s  {each['name']}: {each['outcome']}{reason}", flush=True)
    bad = _failed(found)
    print(f"{len(found)} entries, {len(bad)} failed; {folder / 'gpu_check.md'}")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m gpu_check", description="Check and measure training on this machine."
    )
    add = parser.add_argument
    add("--out", default="gpu_check", help="the folder for the page (%(default)s)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add("--minutes", type=float, default=10, help="time limit (%(default)s)")
    add("--turns", type=int, default=3, help="of each loop that is measured (%(default)s)")
    add("--profile", action="store_true", help="also where a step's time goes, and each setting")
    add("--only", nargs="+", default=["*"], metavar="GLOB", help="such as 'mlp ddp *'")
    return parser


def _checks(device: str, asked: argparse.Namespace, logs: Path, end: float) -> Iterator[Result]:
    only = asked.only

    def run(name: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> Result:
        ranks = arguments[0].ranks if isinstance(arguments[0], Entry) else 1
        log = logs.absolute() / f"{name.replace(' ', '_')}.log"
        return _run(name, end, seconds, log, partial(function, *arguments), ranks)

    with TemporaryDirectory() as cache:
        for network in SETTINGS:
            yield from _side_by_side(network, device, asked, run, cache)
        if asked.profile and _matches(large.PROFILE, only):
            ours = f"{cache}/large {large.OURS}"
            yield run(large.PROFILE, SECONDS_OF_CODE, large.profiled, device, ours)
        for name in large.CHANGES:
            if asked.profile and _matches(name, only):
                found = run(name, SECONDS_OF_CODE, large.changed, name, device, cache)
                yield {**found, "required": False}  # not every card has each kernel, and the memory
    wanted = [entry for entry in matrix(device == "cuda") if _matches(entry.name, only)]
    curves: dict[str, Any] = {}
    for task in dict.fromkeys(entry.task for entry in wanted if entry.task not in DRAWS_NOISE):
        name = f"{task} plain 32-true on the CPU"
        plain = run(name, SECONDS_OF_AN_ENTRY, entries.plain_run, task)
        curves[task] = plain.get("loss", [])
        yield plain
    for entry in wanted:
        seconds = SECONDS_OF_CODE if entry.option == "compile" else SECONDS_OF_AN_ENTRY
        curve = curves.get(entry.task)
        found = run(entry.name, seconds, entries.check_entry, entry, device, curve)
        yield {**found, "required": entry.required}


def _side_by_side(
    network: str, device: str, asked: argparse.Namespace, run: Callable[..., Result], cache: str
) -> Iterator[Result]:
    """Measure the loops of a network by turns: each is the first of one; see `large.py`."""
    names = [
        name
        for name, (of, _) in large.NAMES.items()
        if of == network and _matches(name, asked.only)
    ]
    if network == "resnet" and names and find_spec("torchvision") is None:
        why = {"outcome": "not run", "reason": "it needs torchvision", "seconds": 0.0}
        yield from ({"name": name, "required": False, **why} for name in names)
        return
    turns: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(asked.turns):
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            if all(each["outcome"] == "measured" for each in turns[name]):
                loop = large.NAMES[name]
                folder = f"{cache}/{name}"
                turns[name].append(
                    run(name, SECONDS_OF_CODE, large.measured, *loop, device, folder)
                )
    for name in names:
        bad = [each for each in turns[name] if each["outcome"] != "measured"]
        yield bad[0] if bad else large.of_turns(turns[name])


def _matches(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _run(
    name: str, end: float, seconds: float, log: Path, function: Callable[[], Any], ranks: int
) -> Result:
    """What a function returns in ranks of its own, or in one line why it returned nothing.

    What its ranks print, and the traceback of one that fails, goes into the log.
    """
    begun = time.monotonic()
    found: Result = {"name": name, "required": True, "outcome": "failed", "reason": ""}
    left = end - begun
    if left < LEAST:
        return {**found, "outcome": "not run", "reason": "no time is left", "seconds": 0.0}
    seconds = int(min(seconds, left))
    try:
        found |= start_ranks(
            with_time_limit, (seconds, log, function), RankOptions(), processes=ranks
        )
    except RankFailed as error:
        with log.open("a") as file:
            file.write(f"{error}\n")
        is_late = "SIGALRM" in str(error)
        found["reason"] = f"did not end within {seconds} s" if is_late else _last_line(str(error))
    except UserError as error:
        found["reason"] = str(error)
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def with_time_limit(seconds: int, log: Path, function: Callable[[], Any]) -> Any:
    """One rank's part, which ends with its process where it takes longer."""
    signal.alarm(seconds)
    redirect_output(log)
    return function()


def _last_line(failure: str) -> str:
    lines = [line for line in failure.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]}: {in_short(Exception(lines[-1]))}"


def _failed(found: Sequence[Result]) -> list[Result]:
    """Those by which the whole check fails."""
    return [each for each in found if each["required"] and each["outcome"] not in GOOD]


def _write(folder: Path, device: str, seconds: float, found: Sequence[Result]) -> None:
    """Write both files, again after each entry: a check that is stopped leaves what it found."""
    facts = {**_machine(device), "seconds": round(seconds, 1), "failed": len(_failed(found))}
    record = json.dumps({**facts, "entries": list(found)}, indent=1)
    (folder / "gpu_check.json").write_text(record + "\n")
    (folder / "gpu_check.md").write_text("\n\n".join(paragraphs(facts, found)) + "\n")


def _machine(device: str) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(0) if device == "cuda" else None
    return {
        "device": device,
        "card": card.name if card else platform.processor() or platform.machine(),
        "card_bytes": card.total_memory if card else None,
        "cuda": torch.version.cuda if card else None,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "python": platform.python_version(),
    }
