"""`breakpoint()` in a rank: one gets the terminal, the others wait for it where they meet."""

import os
import pdb
import sys
from typing import Any

TERMINAL = "/dev/tty"


class Breakpoint:
    """What `breakpoint()` calls in a rank, whose standard input leads nowhere.

    Args:
        rank: This one.
        chosen: The rank that stops.
    """

    def __init__(self, rank: int, chosen: int) -> None:
        self.rank = rank
        self.chosen = chosen
        self.debugger: pdb.Pdb | None = None
        self.passes = False

    def __call__(self, *_arguments: Any, **_named: Any) -> None:
        """Stop in the caller's frame, or say once why not."""
        if self.passes:
            return
        try:
            # Not one file: a terminal cannot be sought in.
            reads, writes = open(TERMINAL), open(TERMINAL, "w", buffering=1)  # noqa: SIM115
        except OSError:
            self.passes = True
            print(
                f"rank {self.rank} passes over breakpoint(): there is no terminal here; type the "
                "command in one, or set PYTHONBREAKPOINT to a debugger that is reached otherwise",
                file=sys.stderr,
                flush=True,
            )
            return
        if self.rank != self.chosen:
            self.passes = True
            print(
                f"rank {self.rank} passes over breakpoint(), where rank {self.chosen} stops; "
                f"launch.debug_rank={self.rank} stops this one instead",
                file=writes,
            )
            return
        if self.debugger is None:
            # Ctrl-C stays the run's.
            self.debugger = pdb.Pdb(stdin=reads, stdout=writes, nosigint=True)
            self.debugger.prompt = f"(Pdb, rank {self.rank}) "
        self.debugger.set_trace(sys._getframe(1))


def at_breakpoints(rank: int, chosen: int) -> None:
    """Let `breakpoint()` stop the chosen rank, unless PYTHONBREAKPOINT says what it does."""
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = Breakpoint(rank, chosen)
