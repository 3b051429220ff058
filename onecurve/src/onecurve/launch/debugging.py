"""`breakpoint()` in a rank: one rank gets the terminal, the others wait at the next collective."""

import pdb
import sys
from typing import Any

TERMINAL = "/dev/tty"


class Breakpoint:
    """The `sys.breakpointhook` of a rank, which has no standard input; the chosen rank stops."""

    def __init__(self, rank: int, chosen: int) -> None:
        self.rank = rank
        self.chosen = chosen
        self.debugger: pdb.Pdb | None = None
        self.passes = False

    def __call__(self, *_arguments: Any, **_named: Any) -> None:
        """Stop in the caller's frame, or report once why that is not possible."""
        if self.passes:
            return
        try:
            # Two files, because a terminal does not support seeking.
            reads, writes = open(TERMINAL), open(TERMINAL, "w", buffering=1)  # noqa: SIM115
        except OSError:
            self.passes = True
            print(
                f"rank {self.rank} ignores breakpoint(): there is no terminal; run the command in "
                "one, or set PYTHONBREAKPOINT to a debugger that needs none",
                file=sys.stderr,
                flush=True,
            )
            return
        if self.rank != self.chosen:
            self.passes = True
            print(
                f"rank {self.rank} ignores breakpoint(), at which rank {self.chosen} stops; "
                f"launch.debug_rank={self.rank} stops this rank instead",
                file=writes,
            )
            return
        if self.debugger is None:
            # Ctrl-C still stops the run.
            self.debugger = pdb.Pdb(stdin=reads, stdout=writes, nosigint=True)
            self.debugger.prompt = f"(Pdb, rank {self.rank}) "
        self.debugger.set_trace(sys._getframe(1))
