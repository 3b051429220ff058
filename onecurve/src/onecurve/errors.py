"""Errors that users see as one line instead of a traceback, in the words of its reader.

Lines are written as overrides of the command line, such as ``strategy.microbatches=2``. In a script
they become the arguments that a reader can type there, such as ``Pipeline(microbatches=2)``.
"""

import errno
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console


class UserError(Exception):
    """A mistake that the user can correct.

    Raise it with one line that names the config key, its value, what is allowed and a working
    alternative. The command prints that line and ends with status 2.
    """

    def __str__(self) -> str:
        """The message on one line, because a key or a value may contain a line break."""
        return for_reader(one_line(super().__str__()))


def one_line(text: str) -> str:
    """Escape line breaks."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


FULL_DISK = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

OTHER_PACKAGE = re.compile("must be a `LightningModule`|strategy=<onecurve")
"""Messages of Lightning's two packages about objects of the other package."""

NOT_OF_THE_PROJECT = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    *(str(Path(__file__).parent), "<"),
)
"""How paths of files begin that are installed, of this library, or no files."""

FRAME_IN_TEXT = re.compile(r'^  File "(.+)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)
"""A frame of a traceback that is the message of an error."""

REFUSED = 2  # the exit status after a UserError; Hydra's own errors end with 1


def say(line: str) -> None:
    """Print a line to stderr; a failure, for example on a full disk, is ignored.

    The run must not depend on it.
    """
    line = line if "\n" in line else for_reader(line)  # no traceback
    # ValueError: stderr was closed.
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def stop(error: UserError) -> NoReturn:
    """Print the error and end the program with status 2."""
    say(f"error: {error}")
    sys.exit(REFUSED)


def plain_console(width: int | None = None) -> "Console":
    """A console that prints texts as they are, those in the cells of tables included.

    Rich would read ``[cat]`` in them as a style, and ``:cat:`` as an emoji. Without a width it has
    the columns of the terminal.
    """
    from rich.console import Console

    return Console(width=width, markup=False, emoji=False)


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """The first of many names, and the number of the others."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def missing_packages(asked: str, packages: Sequence[str], extra: str, instead: str) -> str | None:
    """The error line for an option, such as ``format=onnx``, whose packages are not installed.

    None if they are. It names an extra that installs them, and an option that works without.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if not absent:
        return None
    return (
        f"{asked}: needs {', '.join(absent)}; type `uv pip install -e '.[{extra}]'`, or use "
        f"{instead}"
    )


def in_short(error: BaseException, at_most: int = 200) -> str:
    """The message of an error on one line, shortened."""
    return " ".join(str(error).split())[:at_most]


def in_digits(value: float) -> str:
    """A metric with four decimals, or as 3.2e-06 where these would show little of it."""
    is_plain = value == 0 or 0.001 <= abs(value) < 1e6
    return f"{value:.4f}" if is_plain else f"{value:.3g}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, each once, even if two errors name each other as the cause."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def of_the_project(error: BaseException) -> list[TracebackType]:
    """The frames of an error that are of the project's own code, from the outermost."""
    return [
        trace
        for trace in _frames(error)
        if not trace.tb_frame.f_code.co_filename.startswith(NOT_OF_THE_PROJECT)
    ]


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def show_frames_of_the_project(error: BaseException) -> None:
    """Leave an error's traceback the frames of the project's own code; without one, the last frame.

    Around and between them are those of Hydra, Lightning, PyTorch and this library; they go from
    the traceback in the message of a loader's worker, too.
    """
    for each in chain(error):
        frames = of_the_project(each) or [*_frames(each)][-1:]
        for outer, inner in pairwise([*frames, None]):
            if outer is not None:
                outer.tb_next = inner
        each.__traceback__ = frames[0] if frames else None
        if len(each.args) == 1 and isinstance(said := each.args[0], str):
            text = FRAME_IN_TEXT.sub(
                lambda frame: "" if frame[1].startswith(NOT_OF_THE_PROJECT) else frame[0], said
            )
            # PyTorch's class of the message of a KeyError shows its lines as such.
            each.args = (type(said)(text),)


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is among the causes of an error.

    An interrupted library may raise another error while it cleans up: OmegaConf, for example, an
    AttributeError.
    """
    return any(isinstance(each, KeyboardInterrupt) for each in chain(error))


def user_error_behind(error: BaseException | None) -> UserError | None:
    """The UserError among the causes of an error; None if there is none.

    Errors of the user are also a full disk, a syntax error, and objects of Lightning's other
    package; but not an error that Ctrl-C has caused.
    """
    if interrupted(error):
        return None
    for each in chain(error):
        if isinstance(each, UserError):
            return each
        if isinstance(each, SyntaxError) and each.filename:
            where = f"{each.filename}, line {each.lineno}"
            return UserError(f"{where}: {each.msg} ({type(each).__name__}); correct it")
        if isinstance(each, OSError) and each.errno in FULL_DISK:
            where = f"{each.filename}: " if each.filename else ""
            return UserError(
                f"{where}the disk is full; free some space, then resume with resume=last"
            )
        if "pytorch_lightning" in sys.modules and OTHER_PACKAGE.search(str(each)):
            return UserError(
                "onecurve works with the package lightning, and the classes of pytorch_lightning "
                "are different ones; write import lightning.pytorch as pl instead of import "
                f"pytorch_lightning as pl ({in_short(each, 90)})"
            )
    return None


# The variable in which a command tells the processes that it starts where its script is.
PROJECT = "ONECURVE_PROJECT"

STRATEGIES = {
    "single": "Single",
    "dp": "DP",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "pipeline": "Pipeline",
    "tensor": "Tensor",
    "mesh": "mesh",
}
CALLBACKS = {
    "batch_size_finder": "BatchSizeFinder",
    "checkpoint": "BestAndLast",
    "ema": "ExponentialMovingAverage",
    "lr_finder": "LearningRateRangeTest",
    "nan_guard": "NanGuard",
    "swa": "StochasticWeightAveraging",
    "tensorboard": "Displays",
    "timer": "Timer",
}
WORDS = {"true": "True", "false": "False", "null": "None", "resume": "ckpt_path"}
NOT_INSIDE = r"(?<![\w./~+-])"
OVERRIDE = re.compile(
    NOT_INSIDE + r"(?P<quote>'?)(?P<key>(?:strategy|trainer|callbacks|data|optimizer|scheduler|"
    r"model|task)(?:\.[a-z_]\w*)+|monitor|mode|resume)="
    r"(?P<value>\[[^\]]*\]|\{[^}]*\}|[^\s;,'\")]+?)(?P=quote)(?=[\s;,'\")]|[:.](?:\s|$)|$)"
)
STRATEGY = re.compile(rf"{NOT_INSIDE}strategy=({'|'.join(STRATEGIES)})\b(?![:=])")
CALLBACK = re.compile(rf"{NOT_INSIDE}'?~?callbacks\.({'|'.join(CALLBACKS)})\b'?")


def for_reader(line: str) -> str:
    """The line for whoever has typed a command, or runs a script."""
    return line if PROJECT in os.environ else in_python(line)


def in_python(line: str) -> str:
    """The line for a script; what is in its words already stays as it is."""
    about = re.search(rf"strategy=({'|'.join(STRATEGIES)}):", line)
    strategy = STRATEGIES[about[1]] if about else None

    def argument(match: re.Match[str]) -> str:
        group, _, name = match["key"].rpartition(".")
        top, _, entry = group.partition(".")
        classes = {"trainer": "Trainer", "strategy": strategy, "callbacks": CALLBACKS.get(entry)}
        if name == "_target_" or (top == "callbacks" and not classes[top]):
            return match[0]  # of a YAML file
        typed = f"{WORDS.get(name, name)}={literal(match['value'])}"
        return f"{classes[top]}({typed})" if classes.get(top) else typed

    line = OVERRIDE.sub(argument, line).replace("' mode=", "', mode=")
    line = STRATEGY.sub(lambda found: f"strategy={STRATEGIES[found[1]]}()", line)
    return CALLBACK.sub(lambda found: CALLBACKS[found[1]], line)


def literal(value: str) -> str:
    """A value of an override as Python writes it."""
    if value in WORDS or re.fullmatch(r"[\d.+-][\d.e+-]*|\{.*\}|[A-Z]+", value):
        return WORDS.get(value, value)
    if value.startswith("["):
        return f"[{', '.join(literal(each.strip()) for each in value[1:-1].split(',') if each)}]"
    return repr(value)
