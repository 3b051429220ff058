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
from pathlib import Path
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
from .entries import DRAWS_NOISE, LARGE, TOLERANCES, Entry, matrix

SECONDS_OF_AN_ENTRY, SECONDS_OF_CODE = 60, 240
"""At most, of one that compiles nothing, and of one that does."""
LEAST = 5
"""Seconds that must be left for an entry to begin."""
GOOD = ("equal", "measured")

Result = dict[str, Any]
"""Of an entry: its name, whether it is required, its outcome, a reason, and what was measured."""


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
    if not any(_matches(name, asked.only) for name in names):
        stop(
            UserError(
                f"--only {' '.join(asked.only)}: matches no entry; such as --only 'mlp ddp *'"
            )
        )
    folder = Path(asked.out)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    found: list[Result] = []
    warm_up()
    for each in _checks(device, asked.only, folder / "logs", begun + 60 * asked.minutes):
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
    parser.add_argument("--out", default="gpu_check", help="the folder for the page (%(default)s)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--minutes", type=float, default=8, help="time limit (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="GLOB", help="check these, such as 'mlp ddp *'"
    )
    return parser


def _checks(device: str, only: list[str], logs: Path, end: float) -> Iterator[Result]:

    def run(name: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> Result:
        ranks = arguments[0].ranks if isinstance(arguments[0], Entry) else 1
        log = logs.absolute() / f"{name.replace(' ', '_')}.log"
        return _run(name, end, seconds, log, partial(function, *arguments), ranks)

    if _matches(LARGE, only):
        yield run(LARGE, SECONDS_OF_CODE, large.measured, device)
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
    (folder / "gpu_check.md").write_text("\n\n".join(_paragraphs(facts, found)) + "\n")


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


def _paragraphs(facts: dict[str, Any], found: Sequence[Result]) -> Iterator[str]:
    cuda = f", CUDA {facts['cuda']}" if facts["cuda"] else ""
    yield f"# onecurve on {facts['card']}"
    yield f"torch {facts['torch']}, lightning {facts['lightning']}, Python {facts['python']}{cuda}"
    bad = f"{facts['failed']} failed" if facts["failed"] else "none failed"
    yield f"{len(found)} entries in {facts['seconds']:.0f} s; {bad}."
    for each in found:
        if each["name"] == LARGE and each["outcome"] == "measured":
            yield from _measured(each, facts["device"])
    compared = [each for each in found if "apart_from_cpu" in each]
    if compared:
        allowed = "; ".join(f"{name} {a:.0e} and {b:.0e}" for name, (a, b) in TOLERANCES.items())
        yield "## Compared"
        yield (
            "The largest relative difference of a step's loss from a plain Trainer's in 32-true on "
            "the CPU, and of a run that was resumed from one that was not interrupted. Allowed: "
            f"{allowed}."
        )
        rows = [
            f"| {each['name']} | {each['outcome']} | {_difference(each['apart_from_cpu'])} | "
            f"{_difference(each['apart_when_resumed'])} | {each['seconds']:.1f} |"
            for each in compared
        ]
        head = ["| | outcome | from the CPU | resumed | seconds |", "|---|---|---:|---:|---:|"]
        yield "\n".join([*head, *rows])
    others = [each for each in found if each["outcome"] not in GOOD]
    if others:
        yield "## What did not pass"
        yield "\n".join(
            f"- {each['name']}: {each['outcome']}: {each['reason']}"
            + ("" if each["required"] else " (does not count)")
            for each in others
        )


def _measured(large: Result, device: str) -> Iterator[str]:
    stands_for = "" if device == "cuda" else ", which stands for 1 billion on a CPU"
    of_process = "" if device == "cuda" else ", of the process with its libraries"
    rows = {
        "tokens a second": f"{large['tokens_per_second']:,.0f}",
        "MFU": f"{large['mfu']:.1%}" if large["mfu"] else "no peak is known",
        "peak memory": _in_words(large["peak_bytes"]) + of_process,
        "the first step": f"{large['seconds_of_first_step']:.1f} s, and "
        f"{large['seconds_to_end_of_first_step']:.1f} s with what comes before it",
        "share of our code in a step": f"{large['share_of_our_code']:.1%} of the main thread",
        "share of waiting for data": f"{large['data_share']:.1%}",
    }
    if "planned_bytes" in large:
        rows["peak memory, planned"] = _in_words(large["planned_bytes"])
        rows["tokens a second, planned"] = f"{large['planned_tokens_per_second']:,.0f}"
    yield "## Measured"
    yield (
        f"A transformer of {large['parameters']:,} parameters{stands_for}; fsdp, bf16-mixed, "
        f"compile=layer, {large['tokens_a_step']:,} tokens a step."
    )
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    yield "\n".join(["| | |", "|---|---:|", *table])


def _difference(value: float | None) -> str:
    return "its own noise" if value is None else f"{value:.1e}"


def _in_words(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
