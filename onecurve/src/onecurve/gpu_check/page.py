"""What a check leaves behind: gpu_check.json with all of it, and gpu_check.md to read."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from .entries import LARGE, TOLERANCES

Found = dict[str, Any]
"""Of an entry: its name, whether it is required, its outcome, a reason, and what was measured."""

GOOD = ("equal", "measured")


def failed(found: Sequence[Found]) -> list[Found]:
    """Those by which the whole check fails."""
    return [each for each in found if each["required"] and each["outcome"] not in GOOD]


def write(folder: Path, device: str, seconds: float, found: Sequence[Found]) -> None:
    """Write both files, again after each entry: a check that is stopped leaves what it found."""
    facts = {**_machine(device), "seconds": round(seconds, 1), "failed": len(failed(found))}
    record = json.dumps({**facts, "entries": list(found)}, indent=1)
    (folder / "gpu_check.json").write_text(record + "\n")
    (folder / "gpu_check.md").write_text("\n".join(_lines(facts, found)) + "\n")


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


def _lines(facts: dict[str, Any], found: Sequence[Found]) -> list[str]:
    bad = failed(found)
    lines = [
        f"# onecurve on {facts['card']}",
        "",
        f"torch {facts['torch']}, lightning {facts['lightning']}, Python {facts['python']}"
        + (f", CUDA {facts['cuda']}" if facts["cuda"] else ""),
        "",
        f"{len(found)} entries in {facts['seconds']:.0f} s; "
        + (f"{len(bad)} failed" if bad else "none failed")
        + ".",
    ]
    large = next((each for each in found if each["name"] == LARGE), None)
    if large is not None and large["outcome"] == "measured":
        lines += ["", *_of_large(large, facts["device"])]
    compared = [each for each in found if "apart_from_cpu" in each]
    if compared:
        allowed = "; ".join(f"{name} {a:.0e} and {b:.0e}" for name, (a, b) in TOLERANCES.items())
        lines += [
            "",
            "## Compared",
            "",
            "The largest relative difference of a step's loss from a plain Trainer's in 32-true on "
            "the CPU, and of a run that was resumed from one that was not interrupted. Allowed: "
            f"{allowed}.",
            "",
            "| | outcome | from the CPU | resumed | seconds |",
            "|---|---|---:|---:|---:|",
            *(
                f"| {each['name']} | {each['outcome']} | {_difference(each['apart_from_cpu'])} | "
                f"{_difference(each['apart_when_resumed'])} | {each['seconds']:.1f} |"
                for each in compared
            ),
        ]
    others = [each for each in found if each["outcome"] not in GOOD]
    if others:
        lines += ["", "## What did not pass", ""]
        lines += [
            f"- {each['name']}: {each['outcome']}: {each['reason']}"
            + ("" if each["required"] else " (does not count)")
            for each in others
        ]
    return lines


def _of_large(large: Found, device: str) -> list[str]:
    stands_for = "" if device == "cuda" else ", which stands for 1 billion on a CPU"
    rows = {
        "tokens a second": f"{large['tokens_per_second']:,.0f}",
        "MFU": f"{large['mfu']:.1%}" if large["mfu"] else "no peak is known",
        "peak memory": _in_words(large["peak_bytes"])
        + ("" if device == "cuda" else ", of the process with its libraries"),
        "the first step": f"{large['seconds_of_first_step']:.1f} s, and "
        f"{large['seconds_to_end_of_first_step']:.1f} s with what comes before it",
        "share of our code in a step": f"{large['share_of_our_code']:.1%} of the main thread",
        "share of waiting for data": f"{large['data_share']:.1%}",
    }
    if "planned_bytes" in large:
        rows["peak memory, planned"] = _in_words(large["planned_bytes"])
        rows["tokens a second, planned"] = f"{large['planned_tokens_per_second']:,.0f}"
    return [
        "## Measured",
        "",
        f"A transformer of {large['parameters']:,} parameters{stands_for}; fsdp, bf16-mixed, "
        f"compile=layer, {large['tokens_a_step']:,} tokens a step.",
        "",
        "| | |",
        "|---|---:|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
    ]


def _difference(value: float | None) -> str:
    return "its own noise" if value is None else f"{value:.1e}"


def _in_words(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
