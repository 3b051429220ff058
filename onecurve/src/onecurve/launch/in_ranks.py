"""`onecurve.launch`: runs a function of a script in several ranks on this machine."""

import ast
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .. import machine
from ..errors import UserError, user_error_behind
from .context import RankFailed
from .forkserver import warm_up

Result = TypeVar("Result")


def launch(
    function: Callable[..., Result],
    *arguments: Any,
    devices: int = 2,
    logs: str | Path | None = None,
    debug_rank: int = 0,
) -> Result:
    """Call a function in several ranks on this machine, and return its result on rank 0.

    In each rank ``Trainer(devices=devices)`` finds the others. If ranks exist already, because
    torchrun or srun has started this script, the function is simply called. Call this beneath
    ``if __name__ == "__main__":``, because every rank imports the script.

    Args:
        function: The function that each rank runs, found by its module and name.
        arguments: Its arguments; anything that can be pickled.
        devices: The number of ranks to start; 1 calls the function in this process.
        logs: A folder for ``logs/rank_N.log``, with the logs of each rank and the output of all but
            the first; None leaves everything on the console.
        debug_rank: The rank that `breakpoint()` stops, in the terminal of this process.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one, or if it cannot find the function.
        KeyboardInterrupt: After Ctrl-C, once all ranks have ended.
    """
    if machine.ranks_around() is not None:
        return function(*arguments)
    if (nodes := machine.node_around().nodes or 1) > 1:
        raise UserError(
            f"onecurve.launch: starts ranks on one machine, but PET_NNODES={nodes}, and each of "
            "these nodes would do the full run; start the script with torchrun"
        )
    if devices == 1:
        from .worker import only_rank

        with only_rank():
            try:
                return function(*arguments)
            except Exception as error:
                if refusal := user_error_behind(error):
                    raise refusal from None
                raise
    _reject_without_guard()
    machine.reject_missing_interface()
    _reject_unpicklable(function, arguments)
    warm_up()
    from .agent import start_ranks
    from .worker import RankOptions

    folder = None if logs is None else Path(os.path.abspath(logs))
    options = RankOptions(logs=folder, debug_rank=debug_rank)
    try:
        result: Result = start_ranks(function, arguments, options, processes=devices)
    except RankFailed as failure:
        if failure.status == 128 + signal.SIGINT:
            raise KeyboardInterrupt from None
        raise
    return result


def _reject_without_guard() -> None:
    """Reject a call that each rank would come to again, as it imports the script."""
    main = sys.modules["__main__"]
    for frame, line in traceback.walk_stack(None):
        code, file = frame.f_code, Path(frame.f_code.co_filename)
        if frame.f_globals is vars(main) and code.co_name == "<module>" and file.is_file():
            # A package's __main__.py is not imported by ranks.
            for node in ast.parse(file.read_bytes()).body if file.name != "__main__.py" else ():
                is_guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
                if node.lineno <= line <= (node.end_lineno or line) and not is_guard:
                    raise UserError(
                        f"{file.name}, line {line}: starts ranks, each of which imports this "
                        'script; write it beneath if __name__ == "__main__":'
                    )


def _reject_unpicklable(function: Callable[..., Any], arguments: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    main = sys.modules["__main__"]
    if getattr(function, "__module__", "") == "__main__" and not hasattr(main, "__file__"):
        raise UserError(
            f"onecurve.launch: {name} is not defined in a file, from which ranks could import it; "
            "put it into a script or a module"
        )
    try:
        pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"onecurve.launch: {name} cannot be sent to the ranks ({error}); give a function at "
            "the top level of a file, with arguments that can be pickled"
        ) from None
