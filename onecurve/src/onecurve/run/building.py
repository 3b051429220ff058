"""Says in one line what a part of the run cannot be made of, before the first step."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException

from ..errors import UserError, in_short, user_error_behind

# How constructors say that they are given what they do not take. What else they raise is a mistake
# in them, and keeps its traceback.
REFUSALS = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError, InstantiationException, MisconfigurationException),
)
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
LONGEST = 300


@contextmanager
def building(key: str) -> Iterator[None]:
    """What is done here makes a part of the run out of the configuration at `key`.

    Raises:
        UserError: If that part cannot be made so.
    """
    try:
        yield
    except REFUSALS as error:
        if refusal := user_error_behind(error):
            raise refusal from None
        raise UserError(f"{key}: {in_a_line(error)}") from error


def made(key: str, node: Any, kind: type[Any], **parts: Any) -> Any:
    """What the configuration at `key` describes, which must be of the kind that a run needs there.

    Raises:
        UserError: If it cannot be made, or is something else, such as a builtin.
    """
    with building(key):
        part = instantiate(node, **parts)
    if not isinstance(part, kind):
        raise UserError(
            f"{key}._target_={node['_target_']}: makes a {type(part).__name__}, and {key} must be "
            f"a {kind.__name__}; name such a class"
        )
    return part


def called(key: str, part: Any) -> Any:
    """A part that is called later, such as an optimizer that waits for its parameters."""
    if not callable(part):
        return part

    def call(*arguments: Any, **options: Any) -> Any:
        with building(key):
            return part(*arguments, **options)

    return call


def in_a_line(error: BaseException) -> str:
    """What went wrong, and where, if that is in a file of the project."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    text = in_short(error, LONGEST)
    if not isinstance(error, ValueError | InstantiationException | MisconfigurationException):
        text = f"{type(error).__name__}: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{text}{where}; HYDRA_FULL_ERROR=1 shows the traceback"


def _is_own(file: str) -> bool:
    library = str(Path(__file__).parents[1])
    return not file.startswith((*INSTALLED, library, "<"))
