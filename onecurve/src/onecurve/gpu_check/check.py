"""Check training on the card of this machine: see onecurve's page on it.

Every entry has ranks of its own, so that one that fails or hangs stops no other.
"""

import argparse
import signal
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .. import machine
from ..errors import UserError, in_short, stop
from ..launch.agent import start_ranks
from ..launch.forkserver import warm_up
from ..launch.logs import redirect_output
from ..launch.worker import RankOptions
from ..run.outcome import RankFailed
from . import large, one_entry, page
from .entries import DRAWS_NOISE, LARGE, matrix

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
    names = [LARGE, *(entry.name for entry in matrix(device == "cuda"))]
    if not any(fnmatchcase(name, glob) for name in names for glob in asked.only):
        stop(UserError(f"--only {' '.join(asked.only)}: fits no entry; such as --only 'mlp ddp *'"))
    folder = Path(asked.out)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    found: list[page.Found] = []
    warm_up()
    for each in _checks(device, asked.only, folder / "logs", begun + 60 * asked.minutes):
        found.append(each)
        page.write(folder, device, time.monotonic() - begun, found)
        reason = f": {each['reason']}" if each["reason"] else ""
        print(f"{each['seconds']:6.1f} s  {each['name']}: {each['outcome']}{reason}", flush=True)
    bad = page.failed(found)
    print(f"{len(found)} entries, {len(bad)} failed; {folder / 'gpu_check.md'}")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m onecurve.gpu_check", description="Check and measure training here."
    )
    parser.add_argument("--out", default="gpu_check", help="the folder for the page (%(default)s)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--minutes", type=float, default=8, help="at most (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="GLOB", help="entries, such as 'mlp ddp *'"
    )
    return parser


def _checks(device: str, only: list[str], logs: Path, end: float) -> Iterator[page.Found]:
    """What each entry has found, one after the other."""
    if _is_among(LARGE, only):
        yield _found(LARGE, end, SECONDS_OF_CODE, _log(logs, LARGE), large.measured, device)
    wanted = [entry for entry in matrix(device == "cuda") if _is_among(entry.name, only)]
    curves: dict[str, Any] = {}
    for task in dict.fromkeys(entry.task for entry in wanted if entry.task not in DRAWS_NOISE):
        name = f"{task} plain 32-true on the CPU"
        plain = _found(name, end, SECONDS_OF_AN_ENTRY, _log(logs, name), one_entry.plain_run, task)
        curves[task] = plain.get("loss", [])
        yield plain
    for entry in wanted:
        seconds = SECONDS_OF_CODE if entry.option == "compile" else SECONDS_OF_AN_ENTRY
        log, arguments = _log(logs, entry.name), (entry, device, curves.get(entry.task))
        checked = one_entry.checked
        found = _found(entry.name, end, seconds, log, checked, *arguments, ranks=entry.ranks)
        yield {**found, "required": entry.required}


def _is_among(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _log(logs: Path, name: str) -> Path:
    return logs.absolute() / f"{name.replace(' ', '_')}.log"


def _found(
    name: str,
    end: float,
    seconds: float,
    log: Path,
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 1,
) -> page.Found:
    """What a function returns in ranks of its own, or in one line why it returned nothing.

    What its ranks print, and the traceback of one that fails, goes into the log.
    """
    begun = time.monotonic()
    found: page.Found = {"name": name, "required": True, "outcome": "failed", "reason": ""}
    left = end - begun
    if left < LEAST:
        return {**found, "outcome": "not run", "reason": "no time is left", "seconds": 0.0}
    seconds = int(min(seconds, left))
    try:
        found |= start_ranks(
            alarmed, (seconds, log, function, *arguments), RankOptions(), processes=ranks
        )
    except RankFailed as error:
        with log.open("a") as file:
            file.write(f"{error}\n")
        is_late = "SIGALRM" in str(error)
        reason = f"did not end within {seconds} s" if is_late else _last_line(str(error))
        found["reason"] = reason
    except UserError as error:
        found["reason"] = str(error)
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def alarmed(seconds: int, log: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """One rank's part, which ends with its process where it takes longer."""
    signal.alarm(seconds)
    redirect_output(log)
    return function(*arguments)


def _last_line(failure: str) -> str:
    """Of a traceback: the exception."""
    lines = [line for line in failure.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]}: {in_short(Exception(lines[-1]))}"
