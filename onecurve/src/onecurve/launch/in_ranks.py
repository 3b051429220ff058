"""`onecurve.launch`: a function of a script in several ranks of this machine."""

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .. import machine, surroundings
from ..errors import UserError, user_error_behind
from ..run.outcome import RankFailed
from .forkserver import warm_up

Result = TypeVar("Result")


def launch(
    function: Callable[..., Result],
    *arguments: Any,
    devices: int = 2,
    logs: str | Path | None = None,
    debug_rank: int = 0,
) -> Result:
    """Call a function in so many ranks of this machine, and return what it returns on rank 0.

    In each of them ``Trainer(devices=devices)`` finds the others. Where there are ranks already,
    because torchrun or srun started this script, the function is only called. A script calls this
    beneath ``if __name__ == "__main__":``, because every rank imports it, too.

    Args:
        function: One rank's part; a rank finds it by its module and name.
        arguments: What it is called with, anything that can be pickled.
        devices: Ranks to start; 1 calls the function in this process.
        logs: A folder whose ``logs/rank_N.log`` get what ranks log, and what all but the first
            print; None leaves all of it on the console.
        debug_rank: The rank that `breakpoint()` stops, in the terminal of this process.

    Raises:
        RankFailed: If a rank failed; names the rank and holds its traceback.
        UserError: If a rank raised one, or if it cannot find the function.
        KeyboardInterrupt: After Ctrl-C, once all ranks have ended.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "onecurve.launch: is called while a rank imports this script; call it beneath "
            'if __name__ == "__main__":'
        )
    if machine.ranks_around() is not None:
        return function(*arguments)
    if (nodes := surroundings.node_around().nodes or 1) > 1:
        raise UserError(
            f"onecurve.launch: starts the ranks of one machine, but PET_NNODES={nodes}: each of "
            "these nodes would do all of it; start the script with torchrun"
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
    _refuse_what_ranks_cannot_find(function, arguments)
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


def _refuse_what_ranks_cannot_find(function: Callable[..., Any], arguments: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    main = sys.modules["__main__"]
    if getattr(function, "__module__", "") == "__main__" and not hasattr(main, "__file__"):
        raise UserError(
            f"onecurve.launch: {name} is defined in no file, and ranks import it; "
            "put it into a script or a module"
        )
    try:
        pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"onecurve.launch: {name} cannot be sent to the ranks ({error}); give a function that "
            "stands at the top of a file, with arguments that can be pickled"
        ) from None
