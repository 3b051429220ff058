"""What a class of the project is, read from its file: importing that may mean importing torch."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import NamedTuple

from ...errors import NOT_OF_THE_PROJECT, nearest, of_syntax

# Bases whose constructors take nothing that a configuration gives.
BASES = ("LightningModule", "LightningDataModule", "Callback", "Module", "object")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign


@cache
def folders_of(package: str) -> list[Path] | None:
    """The folders of a top-level package, or the file of a top-level module; None if missing."""
    try:
        spec = find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    return [Path(folder) for folder in folders] if folders else [Path(spec.origin or "")]


@cache
def file_of(module: str) -> Path | None:
    """The file of a module; None if it is missing."""
    top, *rest = module.split(".")
    paths = [folder.joinpath(*rest) for folder in folders_of(top) or ()]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def is_of_project(module: str) -> bool:
    """Whether a module is a file of Python that is not installed."""
    file = file_of(module)
    return file is not None and not str(file).startswith(NOT_OF_THE_PROJECT)


@cache
def statements(module: str) -> tuple[Path, list[ast.stmt]] | None:
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
    if found := statements(module):
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
        if parts_above := statements(package):  # a class, whose method the target may be
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


class Argument(NamedTuple):
    """An argument of a constructor, as the file of `module` writes it."""

    annotation: ast.expr | None
    default: ast.expr | None
    module: str


class Signature(NamedTuple):
    """The arguments of a class or function by name; one that `is_open` takes others as well."""

    arguments: dict[str, Argument]
    is_open: bool
    about: str | None = None


NOTHING = Signature({}, is_open=False)


@cache
def signature_of(target: str) -> Signature | None:
    """What a class or a function takes; None if its source does not tell."""
    module, _, name = target.rpartition(".")
    where, part = definition_in(module, name) or (module, None)
    if isinstance(part, Function):
        return None if part.decorator_list else _of_function(where, part)
    return _of_class(module, name)


def arguments_of(target: str) -> list[str] | None:
    """Names of what a LightningModule's `__init__` takes; None if its sources do not tell."""
    found = signature_of(target)
    return None if found is None or found.is_open else list(found.arguments)


def definition_in(
    module: str, name: str, is_read: Callable[[str], bool] = lambda module: True
) -> tuple[str, Definition] | None:
    """The statement that defines a name, and its module: the one that is imported from there.

    Modules that are not `is_read` are not looked into.
    """
    seen = set()
    while (module, name) not in seen and is_read(module):
        seen.add((module, name))
        part = _defining(module, name)
        if not isinstance(part, ast.ImportFrom):
            return (module, part) if part else None
        by_name = {alias.asname or alias.name: alias.name for alias in part.names}
        module, name = _imported(module, part), by_name[name]
    return None


def _defining(module: str, name: str) -> Definition | ast.ImportFrom | None:
    found = statements(module)
    for part in found[1] if found else ():
        if isinstance(part, ast.ImportFrom):
            names = [alias.asname or alias.name for alias in part.names]
        elif isinstance(part, ast.Assign):
            names = [ast.unparse(target) for target in part.targets]
        else:
            names = [part.name] if isinstance(part, ast.ClassDef | Function) else []
        if name in names:
            assert isinstance(part, Definition | ast.ImportFrom)
            return part
    return None


def _imported(module: str, part: ast.ImportFrom) -> str:
    found = statements(module)
    is_package = found is not None and found[0].name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    return resolve_name("." * part.level + (part.module or ""), package)


def _of_class(module: str, name: str) -> Signature | None:
    if name in BASES:
        return NOTHING
    definition = definition_in(module, name)
    if definition is None:
        return None
    where, part = definition
    if not isinstance(part, ast.ClassDef) or part.decorator_list:
        return None
    about = ast.get_docstring(part)
    bases = [ast.unparse(base).rpartition(".")[2] for base in part.bases]
    for entry in part.body:
        if isinstance(entry, ast.FunctionDef) and entry.name == "__init__":
            own = _of_function(where, entry)
            arguments = dict([*own.arguments.items()][1:])  # without self
            inherited = _passed_on(where, entry, bases)
            if inherited is not None:
                return Signature({**inherited.arguments, **arguments}, inherited.is_open, about)
            return Signature(arguments, own.is_open, about)
    found = [taken for base in bases if (taken := _of_class(where, base)) != NOTHING]
    if len(found) > 1:  # which may call each other
        return None
    return found[0] and found[0]._replace(about=about) if found else NOTHING


def _passed_on(module: str, init: ast.FunctionDef, bases: list[str]) -> Signature | None:
    """What a constructor passes on by ``super().__init__(**options)``; None if that is unknown."""
    options = init.args.kwarg
    for call in ast.walk(init):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"):
            continue
        passed = [ast.unparse(word.value) for word in call.keywords if word.arg is None]
        if options is None or options.arg not in passed or call.args or len(bases) != 1:
            return None
        found = _of_class(module, bases[0])
        given = {word.arg for word in call.keywords}
        return found and found._replace(
            arguments={name: it for name, it in found.arguments.items() if name not in given}
        )
    return None


def _of_function(module: str, part: Function) -> Signature:
    """The signature of a function; that of a constructor begins with ``self``."""
    taken = part.args
    positional = [*taken.posonlyargs, *taken.args]
    missing = len(positional) - len(taken.defaults)
    defaults = [*[None] * missing, *taken.defaults, *taken.kw_defaults]
    arguments = {
        argument.arg: Argument(argument.annotation, default, module)
        for argument, default in zip([*positional, *taken.kwonlyargs], defaults, strict=True)
    }
    return Signature(arguments, taken.kwarg is not None, ast.get_docstring(part))
