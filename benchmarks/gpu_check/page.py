"""The page that a check leaves: what was measured, what was compared, and what did not pass."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .entries import TOLERANCES
from .large import CHANGES, NAMES, PROFILE
from .loops import BARE, OURS, SETTINGS

Result = dict[str, Any]
"""Of an entry: its name, whether it is required, its outcome, a reason, and what was measured."""
GOOD = ("equal", "measured")
UNITS = {"large": "tokens", "resnet": "images"}
HOW = {
    "large": "A transformer of {:,} parameters{}: FSDP2, bf16-mixed, layers compiled, {:,} a step.",
    "resnet": "A ResNet of {:,} parameters{}: bf16-mixed, channels last, no compile, {:,} a step.",
}


def paragraphs(facts: Result, found: Sequence[Result]) -> Iterator[str]:
    """Of the machine, and of all entries so far."""
    cuda = f", CUDA {facts['cuda']}" if facts["cuda"] else ""
    yield f"# onecurve on {facts['card']}"
    yield f"torch {facts['torch']}, lightning {facts['lightning']}, Python {facts['python']}{cuda}"
    bad = f"{facts['failed']} failed" if facts["failed"] else "none failed"
    yield f"{len(found)} entries in {facts['seconds']:.0f} s; {bad}."
    measured = {each["name"]: each for each in found if each["outcome"] == "measured"}
    for network in SETTINGS:
        yield from _side_by_side(network, measured, facts["device"])
    yield from _profile(measured)
    compared = [each for each in found if "apart_from_cpu" in each]
    if compared:
        allowed = "; ".join(f"{name} {a:.0e} and {b:.0e}" for name, (a, b) in TOLERANCES.items())
        yield "## Compared"
        yield (
            "The largest relative difference of a step's loss from a plain Trainer's in 32-true on "
            "the CPU, and of a run that was resumed from one that was not interrupted. Allowed: "
            f"{allowed}."
        )
        rows = []
        for each in compared:
            apart = [_difference(each[f"apart_{key}"]) for key in ("from_cpu", "when_resumed")]
            rows.append((each["name"], each["outcome"], *apart, f"{each['seconds']:.1f}"))
        yield _table(("", "outcome", "from the CPU", "resumed", "seconds"), rows)
    others = [each for each in found if each["outcome"] not in GOOD]
    if others:
        yield "## What did not pass"
        yield "\n".join(
            f"- {each['name']}: {each['outcome']}: {each['reason']}"
            + ("" if each["required"] else " (does not count)")
            for each in others
        )


def _side_by_side(network: str, measured: dict[str, Result], device: str) -> Iterator[str]:
    loops = {
        loop: measured[name]
        for name, (of, loop) in NAMES.items()
        if of == network and name in measured
    }
    if not loops:
        return
    stands_for = "" if device == "cuda" else ", which stands for a large one on a CPU"
    yield f"## {network.capitalize()}, beside other loops"
    first = next(iter(loops.values()))
    yield HOW[network].format(first["parameters"], stands_for, first["units_a_step"])
    yield _figures(loops, UNITS[network], loops.get(BARE))
    yield (
        f"Medians of {len(first['windows'])} windows; the loops took turns. The first step counts "
        "from the finished network, with an empty cache of compiled code."
        + ("" if device == "cuda" else " Memory is that of the process with its libraries.")
    )
    if ours := loops.get(OURS):
        yield f"{ours['share_of_our_code']:.1%} of a step's main thread is onecurve's code."
        if "planned_bytes" in ours:
            planned = _in_words(ours["planned_bytes"])
            yield f"Planned: {planned}, {ours['planned_tokens_per_second']:,.0f} tokens a second."


def _profile(measured: dict[str, Result]) -> Iterator[str]:
    if profile := measured.get(PROFILE):
        yield "## Where a step's time goes"
        yield f"```text\n{profile['table']}```"
    usual = measured.get(f"large {OURS}")
    changed = {name: measured[name] for name in CHANGES if name in measured}
    if changed:
        yield "## What a setting is worth"
        before = {"as beside other loops": usual} if usual else {}
        yield _figures({**before, **changed}, UNITS["large"], usual)


def _figures(results: dict[str, Result], units: str, usual: Result | None) -> str:
    """A row for each result; speeds as multiples of the usual one."""
    head = (f"{units} a second", "", "MFU", "peak memory", "first step", "graphs", "last loss")
    rows = [
        (
            name,
            f"{_rate(each):,.0f}",
            f"{_rate(each) / _rate(usual):.3f}" if usual else "",
            f"{_rate(each) * each['flops_of_unit'] / each['peak_flops']:.1%}"
            if each["peak_flops"]
            else "no peak is known",
            _in_words(each["peak_bytes"]),
            f"{each['seconds_of_first_step']:.1f} s",
            str(each["graphs"]),
            f"{each['final_loss']:.4f}",
        )
        for name, each in results.items()
    ]
    return _table(("", *head), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A first column of words, and others of numbers."""
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rate(result: Result) -> float:
    return float(result["units_a_step"] / result["seconds_of_step"])


def _difference(value: float | None) -> str:
    return "its own noise" if value is None else f"{value:.1e}"


def _in_words(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
