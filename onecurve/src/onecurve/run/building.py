"""Says in one line what a part of the run cannot be made of, before the first step."""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import OmegaConf

from ..errors import UserError, in_short, user_error_behind
from ..meant import nearest

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
        part = instantiate(checked(key, node), **parts)
    if not isinstance(part, kind):
        raise UserError(
            f"{key}._target_={node['_target_']}: makes a {type(part).__name__}, and {key} must be "
            f"a {kind.__name__}; name such a class"
        )
    return part


def checked(key: str, node: Any) -> Any:
    """A node of the configuration, and all in it, as the `Config` of each class means it.

    Raises:
        UserError: If a class is not there, or has a `Config` that a value is no part of.
    """
    if OmegaConf.is_config(node):
        node = OmegaConf.to_container(node, resolve=True)
    if not isinstance(node, dict):
        return node
    node = {name: checked(f"{key}.{name}", value) for name, value in node.items()}
    target = node.get("_target_")
    model = _config_of(_located(key, target)) if isinstance(target, str) else None
    if model is None:
        return node
    own = {name: value for name, value in node.items() if not name.startswith("_")}
    found = model.checked(own)
    for problem in found.problems:
        # What is called later is given the rest then.
        if problem.kind != "missing" or not (node.get("_partial_") or "_args_" in node):
            raise UserError(problem.line(key))
    return node | found.changed


def _located(key: str, target: str) -> Any:
    """What a dotted name stands for."""
    module, _, name = target.rpartition(".")
    try:
        found = import_module(module)
    except ImportError as error:
        package, _, missing = (error.name or "").rpartition(".")
        inside = sys.modules.get(package)
        folders = getattr(inside, "__path__", None)
        is_in_target = f"{target}.".startswith(f"{error.name}.")
        if folders is None or not is_in_target or hasattr(inside, missing):
            # A method of a class, for example, or what Hydra says better.
            return None
        module, name = package, missing
        there = [*dir(inside), *(each.name for each in iter_modules(folders))]
    else:
        if hasattr(found, name):
            return getattr(found, name)
        there = dir(found)
    close = nearest(name, there)
    meant = target.replace(f"{module}.{name}", f"{module}.{close}", 1)
    hint = f"did you mean {meant}?" if close else "name another"
    raise UserError(f"{key}._target_={target}: there is no {name} in {module}; {hint}")


def _config_of(part: Any) -> Any:
    """The model beside a class, unless a class derived from it takes other arguments."""
    for each in getattr(part, "__mro__", (part,)):
        model = vars(each).get("Config") if hasattr(each, "__dict__") else None
        if hasattr(model, "checked"):
            return model
        if "__init__" in getattr(each, "__dict__", ()):
            return None
    return None


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
