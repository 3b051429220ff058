"""Runs the cells of the table, and prints it as docs/exact.md.

In onecurve/: PYTHONPATH=src:tests:tests/harness python tests/parity/table.py
"""

import json
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import warm_ranks
from cases import CASES, SECTIONS, STRATEGIES, Case, Cell

from onecurve.errors import for_reader, user_error_behind
from onecurve.launch.addresses import HOST
from onecurve.machine import unchanged_environment
from onecurve.testing import assert_parity

PAGE = Path(__file__).parents[2] / "docs/exact.md"
START = "<!-- printed by tests/parity/table.py from cases.py -->\n"


class Outcome(NamedTuple):
    """What came of a cell: equal, rejected, differs or failed; its table or line; what was said."""

    kind: str
    text: str
    said: str


def outcomes(column: str, rows: Sequence[str]) -> dict[str, Outcome]:
    """Cells of a column, in ranks that are there already."""
    return {row: outcome(column, row) for row in rows}


def outcome(column: str, row: str) -> Outcome:
    case, (make, settings, devices) = CASES[row], STRATEGIES[column]

    def data() -> Any:
        made = case.data and case.data()
        return made if case.validation is None else (made, case.validation())

    options: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "steps": 6, **case.trainer}
    kind, text = "equal", ""
    with redirect_stderr(StringIO()) as said:
        try:
            strategy = make(**{**settings, **case.settings.get(column, {})})
            assert_parity(case.task, data, strategy=strategy, **options)
        except Exception as error:
            if line := user_error_behind(error):
                kind, text = "rejected", str(line)
            elif isinstance(error, AssertionError):
                kind, text = "differs", str(error)
            else:
                kind, text = "failed", traceback.format_exc()
    warm_ranks.end_groups()
    lines = [line for line in said.getvalue().splitlines() if line.startswith("strategy=")]
    return gather_from_ranks(f"{column}, {row}", Outcome(kind, text, "\n".join(lines)))


def gather_from_ranks(cell: str, mine: Outcome) -> Outcome:
    """What came of a cell, once all ranks have ended it: the first line, if some rejected it.

    The groups of a rank that rejects it alone are gone, so that the others, which wait, fail.
    """
    ranks = range(int(os.environ.get("WORLD_SIZE", "1")))
    if len(ranks) == 1:
        return mine
    store = dist.TCPStore(HOST, int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=60))
    store.set(f"{cell}: {os.environ['RANK']}", json.dumps((time.monotonic(), mine)))
    ended = sorted(json.loads(store.get(f"{cell}: {rank}")) for rank in ranks)
    outcomes = [Outcome(*outcome) for _, outcome in ended]
    return next((each for each in outcomes if each.kind == "rejected"), mine)


def column_of(column: str, rows: Sequence[str]) -> dict[str, Outcome]:
    """Cells of a column, in one go."""
    if column in ("single", "dp"):
        with unchanged_environment(("PL_GLOBAL_SEED", "PL_SEED_WORKERS")):
            return outcomes(column, rows)
    found: dict[str, Outcome] = warm_ranks.run(
        outcomes, column, rows, processes=STRATEGIES[column][2]
    )
    return found


def printed() -> str:
    """All sections, a column a strategy, and behind them the reasons by number."""
    reasons: dict[Cell, int] = {}
    lines = []
    for section, rows in SECTIONS.items():
        lines += [f"## {section}", "", f"| | {' | '.join(STRATEGIES)} |"]
        lines.append("|---" * (1 + len(STRATEGIES)) + "|")
        for name, case in rows.items():
            shown = [_shown(case, column, reasons) for column in STRATEGIES]
            lines.append(f"| {name} | {' | '.join(shown)} |")
        lines.append("")
    lines += ["## What is said", ""]
    lines += [
        f"{number}. {cell.kind}: {for_reader(cell.words)}" for cell, number in reasons.items()
    ]
    return "\n".join(lines) + "\n"


def _shown(case: Case, column: str, reasons: dict[Cell, int]) -> str:
    if column not in case.under:
        return ""
    if cell := case.cells.get(column):
        number = reasons.setdefault(cell, 1 + len(reasons))
        return (
            f"equal, {cell.kind} [{number}]" if cell.kind == "a line" else f"{cell.kind} [{number}]"
        )
    given = ", ".join(f"{key}={value!r}" for key, value in case.settings.get(column, {}).items())
    return f"equal with `{given}`" if given else "equal"


def write() -> None:
    """Print the table into its page."""
    text = PAGE.read_text(encoding="utf-8").partition(START)[0]
    PAGE.write_text(text + START + "\n" + printed(), encoding="utf-8")


if __name__ == "__main__":
    write()
