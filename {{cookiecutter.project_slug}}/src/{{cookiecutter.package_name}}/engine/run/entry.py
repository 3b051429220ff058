"""The command line: runs a Hydra application and says every foreseeable mistake in one line."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...errors import stop, user_error_behind
from . import leaving, resume
from .launch import RankFailed
from .resolvers import register_resolvers
from .values import dotted


def command(main: Callable[[], None], config_dir: Path, config_name: str) -> None:
    """Run `main`, a function made by ``hydra.main``, as the whole program.

    Exit status: 0 after a finished run, 1 after a failure or a mistake that Hydra finds, 2 after a
    refusal; 143, 138, 140 and 130 after SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C, training being saved.
    """
    leaving.last_of_all()
    try:
        _run(main, config_dir, config_name)
        leaving.status = 0
    except SystemExit as end:
        leaving.status = end.code if isinstance(end.code, int) else None
        raise


def _run(main: Callable[[], None], config_dir: Path, config_name: str) -> None:
    register_resolvers()
    before = os.environ.get("HYDRA_FULL_ERROR")
    # Makes Hydra raise its errors instead of printing them, so that the nearest key can be added.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    typed = sys.argv
    try:
        arguments = resume.expand(typed[1:], config_dir, config_name)
        # Hydra would not understand `-m` between two overrides.
        sys.argv = [typed[0], *sorted(arguments, key=lambda word: word not in resume.SWEEP_FLAGS)]
        main()
    except RankFailed as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if before == "1":
            raise
        if refusal := user_error_behind(error):
            stop(refusal)
        below = _below_hydra(error.__traceback__)
        if below is None or isinstance(error, HydraException | OmegaConfBaseException):
            line = explain(error, config_dir, config_name, typed[1:])
            print(f"error: {line}", file=sys.stderr)
        else:
            traceback.print_exception(error.with_traceback(below))
        sys.exit(1)
    finally:
        sys.argv = typed
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def explain(error: Exception, config_dir: Path, config_name: str, typed: list[str]) -> str:
    """One line for an error of Hydra's, with the nearest name that exists.

    Args:
        error: Hydra's.
        config_dir: The folder `configs`.
        config_name: Name of the primary configuration.
        typed: The command line without the program.
    """
    text = " ".join(str(error).split())
    if unknown := re.search(r"Could not (?:load|find) '([\w./-]+)/([\w.-]*)'", text):
        group, choice = unknown.groups()
        if group == "hydra/launcher":
            extra = "joblib" if choice == "joblib" else "submitit"
            return (
                f"sweep/launcher: {choice} is not installed; use sweep/launcher=serial, or type "
                f"`uv pip install -e '.[{extra}]'`"
            )
        options = sorted(path.stem for path in (config_dir / group).glob("*.yaml"))
        if options:
            example = (difflib.get_close_matches(choice, options, 1, cutoff=0.4) or options)[0]
            allowed = ", ".join(options)
            return f"{group}={choice}: must be one of {allowed}, such as {group}={example}"
    if unknown := re.search(r"Could not override '([\w./@-]+)'|'([\w./@-]+)' does not exist", text):
        key = unknown[1] or unknown[2]
        known = known_keys(config_dir, config_name, typed)
        if choices := _choices_with(key, known, config_dir):
            example = f"{key.partition('.')[0]}={choices[0]}"
            return f"{key}: there is such a key only with {' or '.join(choices)}; add {example}"
        near = difflib.get_close_matches(key, known, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see `--cfg job` for all keys"
        return f"{key}: there is no such key; {hint}"
    if several := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        return f"{several[1]}: several values are a sweep; add -m, or give one value"
    return text


def _choices_with(key: str, known: list[str], config_dir: Path) -> list[str]:
    """The files of a group that have a key which the chosen one lacks."""
    group, _, name = key.partition(".")
    name = name.partition(".")[0]
    if not name or f"{group}.{name}" in known:
        return []
    files = (config_dir / group).glob("*.yaml")
    line = re.compile(rf"^{re.escape(name)}:", re.MULTILINE)
    return sorted(path.stem for path in files if line.search(path.read_text()))


def known_keys(config_dir: Path, config_name: str, typed: list[str]) -> list[str]:
    """Every group, and every key of the configuration with the files that were chosen."""
    groups = [path.name for path in config_dir.iterdir() if path.is_dir() and path.name != "hydra"]
    chosen = [word for word in typed if word.partition("=")[0].lstrip("+") in groups]
    try:
        config = _composed(config_dir, config_name, chosen)
    except HydraException:
        # A sweep chooses several.
        config = _composed(config_dir, config_name, [])
    return list(dict.fromkeys([*groups, *(key for key, _ in dotted(config))]))


def _composed(config_dir: Path, config_name: str, chosen: list[str]) -> Any:
    if GlobalHydra.instance().is_initialized():
        return OmegaConf.to_container(compose(config_name, chosen))
    with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
        return OmegaConf.to_container(compose(config_name, chosen))


def _below_hydra(trace: TracebackType | None) -> TracebackType | None:
    """What follows Hydra's call of the task function; None if it had not come to that."""
    while trace is not None and trace.tb_frame.f_code.co_name != "run_job":
        trace = trace.tb_next
    return trace.tb_next if trace else None
