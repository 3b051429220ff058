"""Small functions that the YAML files call: ``${len:...}``, ``${call:...}``, ..."""

import os
import re
from pkgutil import resolve_name
from typing import Any

from omegaconf import OmegaConf

from ...errors import PROJECT, UserError
from ..metric_names import better

LONGEST_NAME = 120
CONSOLE = ("export", "parity", "plan")
"""Commands of the console script ``onecurve`` that have a configuration of a project."""


def numbered(count: int) -> list[str]:
    """Names for `count` classes that have none: "0", "1", ..."""
    return [str(number) for number in range(count)]


def call(function: str, *arguments: Any) -> Any:
    """What a function of a dotted name returns; every command calls it, so without torch."""
    return resolve_name(":".join(function.rsplit(".", 1)))(*arguments)


def mode_of(monitor: str | None) -> str:
    """Whether a smaller or a larger value of a metric is better: "min" or "max", by its name."""
    mode = "min" if monitor is None else better(monitor)
    if mode is None:
        raise UserError(
            f"monitor={monitor}: its name does not tell which way is better; add mode=min or "
            "mode=max"
        )
    return mode


def job_directory(number: int, overrides: str) -> str:
    """Name of the directory of a sweep's job, such as "03-optimizer.lr=0.01,strategy=ddp".

    Its number is from 0; the overrides that vary are as in Hydra's `hydra.job.override_dirname`.
    """
    short = re.sub(r"\d\.\d{6,}", lambda number: f"{float(number[0]):.5g}", overrides)
    name = re.sub(r"[^\w.,=+@~-]+", "_", re.sub("['\"]", "", short)).strip("_")
    return f"{number + 1:02}-{name}"[:LONGEST_NAME].rstrip("-.")


def project() -> str:
    """The project's folder, which is that of its script, wherever a command is typed.

    The variable PROJECT_ROOT sets another, from the current folder where it is relative.
    """
    folder = os.environ.get("PROJECT_ROOT") or os.environ.get(PROJECT) or os.getcwd()
    return os.path.abspath(folder)


def command_of(name: str) -> str:
    """How a command is typed: a script of the project, or one of the console script."""
    return f"onecurve {name}" if name in CONSOLE else f"python {name}.py"


def keys_of(command: str) -> str:
    """What `--help` says of a command's keys in no group, a line each."""
    # Of the models; no other start of a command needs them here.
    from ...config_model import fields
    from ..config.groups import Group
    from ..config.validate import model_of

    model = model_of("", {}, command)
    told = fields(model).items() if model else ()
    keys = {name: field.description for name, field in told if field.annotation != Group}
    return "\n".join(f"  {name:<18}{about or ''}" for name, about in keys.items())


def register_resolvers() -> None:
    """Make the functions known to OmegaConf. Needed before a configuration is read."""
    functions = (numbered, call, project, keys_of, mode_of, job_directory, command_of)
    named = {function.__name__: function for function in functions}
    for name, function in {**named, "len": len}.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
