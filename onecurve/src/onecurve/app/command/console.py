"""The console script ``onecurve``: what a project needs beside its own scripts."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ...errors import PROJECT, UserError, stop
from ...spelling import nearest
from .main import run
from .resolvers import CONSOLE

HELP = """\
onecurve parity strategy=fsdp      compare a strategy with a plain Trainer
onecurve plan trainer.devices=8    estimate which mesh to use
onecurve export checkpoint=FILE    write the network of a checkpoint: torch.export, ONNX
onecurve report SWEEP_DIR          the table and the page of a sweep
onecurve docs [PAGE]               the pages that are installed with the library
onecurve schemas                   what editors need to complete keys in the project's YAML

The first three take overrides, as train.py does; onecurve COMMAND --help lists them."""
# What a command is that has a program of its own.
PROGRAMS = {
    "report": "onecurve.app.sweep.report",
    "docs": "onecurve.docs",
    "schemas": "onecurve.app.command.schemas",
}
WORK = {
    "export": "onecurve.app.run.export.work",
    "parity": "onecurve.app.parity.work",
    "plan": "onecurve.app.plan.work",
}


def main() -> None:
    """Run the command that was typed, for the project around the current folder."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(HELP)
        return
    if name in PROGRAMS:
        sys.argv = [f"onecurve {name}", *words]
        program: Callable[..., int | None] = import_module(PROGRAMS[name]).main
        sys.exit((program(*words) if name == "schemas" else program()) or 0)
    try:
        if name not in CONSOLE:
            raise _no_such_command(name)
        project = _project(name)
    except UserError as error:
        stop(error)
    # Beside the project's scripts, which printed commands name.
    sys.argv = [str(project / name), *words]
    run(WORK[name], project / "configs", name)


def _no_such_command(name: str) -> UserError:
    if name in ("train", "evaluate", "predict"):
        return UserError(f"onecurve {name}: is a script of the project; type python {name}.py")
    known = [*CONSOLE, *PROGRAMS]
    close = nearest(name, known) or "parity"
    return UserError(
        f"onecurve {name}: must be one of {', '.join(sorted(known))}, such as onecurve {close}"
    )


def _project(name: str) -> Path:
    """The project around a folder: the nearest with a configuration of train.py."""
    here = Path(os.environ.get(PROJECT) or os.getcwd())
    for folder in (here, *here.parents):
        if (folder / "configs" / "train.yaml").is_file():
            return folder
    raise UserError(
        f"onecurve {name}: there is no project here (no configs/train.yaml in {here} or above); "
        "type it in the folder of one"
    )


if __name__ == "__main__":
    main()
