"""What a class of the project is, read from its file: importing that may mean importing torch."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from ...errors import NOT_OF_THE_PROJECT, nearest, of_syntax
from .validate import file_of

LIGHTNINGS = ["what LightningModule itself takes"]


@cache
def _parts_of(module: str) -> tuple[Path, list[ast.stmt]] | None:
    """The file of a module, and its statements; None if it has no file of Python."""
    file = file_of(module)
    if file is None or file.suffix != ".py":
        return None
    try:
        return file, ast.parse(file.read_bytes(), filename=str(file)).body
    except SyntaxError as error:
        raise of_syntax(error) from None


def missing_name(target: str) -> str | None:
    """Why the project has no class or function of this dotted name; None if it may have one."""
    module, _, name = target.rpartition(".")
    package, _, last = module.rpartition(".")
    if found := _parts_of(module):
        file, parts = found
        # Installed ones make names in many ways, and so does what runs at import.
        if str(file).startswith(NOT_OF_THE_PROJECT):
            return None
        names = [name for part in parts for name in _names(part)]
        inside = {path.stem for path in file.parent.glob("*") if file.name == "__init__.py"}
        if {name, "*", "__getattr__"}.intersection({*names, *inside}):
            return None
        near, where = nearest(name, names), module
    elif (above := file_of(package)) and above.name == "__init__.py":
        if str(above).startswith(NOT_OF_THE_PROJECT) or (above.parent / last).exists():
            return None
        names = [path.stem for path in above.parent.glob("[a-z]*")]
        if parts_above := _parts_of(package):  # a class, whose method the target may be
            names += [name for part in parts_above[1] for name in _names(part)]
        if last in names:
            return None
        near, where, name = nearest(last, names), package, last
    else:
        return None
    meant = target.replace(f"{where}.{name}", f"{where}.{near}", 1)
    hint = f"did you mean {meant}?" if near else "name another"
    return f"there is no {name} in {where}; {hint}"


def _names(part: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines, and those in its branches."""
    if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield part.name
        return
    for each in ast.walk(part):
        if isinstance(each, ast.alias):
            yield (each.asname or each.name).partition(".")[0]
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.ClassDef | ast.FunctionDef):
            yield each.name


def arguments_of(target: str) -> list[str] | None:
    """Names of what a LightningModule's `__init__` takes; None if its sources do not tell."""
    module, _, name = target.rpartition(".")
    taken = _of_class(module, name)
    # Lightning's own takes any arguments, and makes nothing of them.
    return [] if taken == LIGHTNINGS else taken


@cache
def _of_class(module: str, name: str) -> list[str] | None:
    if name == "LightningModule":
        return LIGHTNINGS
    found = _parts_of(module)
    for part in found[1] if found else ():
        if isinstance(part, ast.ImportFrom):
            for each in part.names:
                if (each.asname or each.name) == name:
                    package = module if found and found[0].name == "__init__.py" else ""
                    package = package or module.rpartition(".")[0]
                    source = "." * part.level + (part.module or "")
                    return _of_class(resolve_name(source, package), each.name)
        if isinstance(part, ast.ClassDef) and part.name == name:
            return None if part.decorator_list else _of_definition(module, part)
    return None


def _of_definition(module: str, definition: ast.ClassDef) -> list[str] | None:
    for part in definition.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            given = part.args
            named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            return None if given.kwarg else named[1:]
    taken: list[str] | None = []
    for base in definition.bases:
        taken = _of_class(module, ast.unparse(base).rpartition(".")[2])
        if taken != []:
            return taken
    return taken
