"""Classes and functions as their source files have them: nothing of them is imported."""

import ast
import difflib
import re
import sys
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef

# Large packages that have no limits: only to parse them would take longer than all else.
NOT_READ = {"hydra", "optuna", "torch", "torchvision", "wandb"}
# But for these parts of them.
READ_ANYWAY = ("torch.nn.init", "torch.optim")
# Of these the one class that is named, but nothing that others are derived from.
READ_WHERE_NAMED = {"lightning", "pytorch_lightning"}


class Source:
    """A source file.

    Attributes:
        name: Dotted name of the module.
        file: Where it is.
        defined: Its classes and functions by name.
        assigned: What it assigns to a name.
        imported: Dotted name of what a name stands for.
    """

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = file
        self.defined: dict[str, Definition] = {}
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, str] = {}
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for statement in ast.parse(file.read_bytes(), str(file)).body:
            if isinstance(statement, Definition):
                self.defined[statement.name] = statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.assigned[statement.targets[0].id] = statement.value
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    # `import a.b` makes the name `a`.
                    self.imported[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(statement, ast.ImportFrom):
                relative = "." * statement.level + (statement.module or "")
                for alias in statement.names:
                    module = resolve_name(relative, package)
                    self.imported[alias.asname or alias.name] = f"{module}.{alias.name}"

    def find(self, name: str) -> "tuple[Source, Definition] | None":
        """What a name, such as "Digits" or "images.Digits", means in this file."""
        first, _, rest = name.partition(".")
        if first in self.imported:
            if self._is_far(self.imported[first]):
                return None
            return find(f"{self.imported[first]}.{rest}".rstrip("."))
        node = self.defined.get(first)
        if node is not None and rest:
            node = method(node, rest)
        return (self, node) if node is not None else None

    def _is_far(self, dotted: str) -> bool:
        """Whether a name leads out of what one's own into a large package."""
        top = dotted.partition(".")[0]
        return top in READ_WHERE_NAMED and self.name.partition(".")[0] != top

    def bases(self, node: Definition) -> "list[tuple[Source, Definition]]":
        """The classes that a class is derived from, but for those that are not read."""
        if not isinstance(node, ast.ClassDef):
            return []
        # Of `Base[int]`, the class.
        names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        found = [self.find(ast.unparse(name)) for name in names]
        return [base for base in found if base is not None]


def find(dotted: str) -> tuple[Source, Definition] | None:
    """A class, a function or a method by its dotted name, as `_target_` has it."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if source := read(".".join(parts[:length])):
            return source.find(".".join(parts[length:]))
    return None


def missing(dotted: str) -> str | None:
    """Why there can be no such class or function; None if there is, or may be."""
    top = dotted.partition(".")[0]
    if top in NOT_READ or top in sys.stdlib_module_names or find(dotted):
        return None
    try:
        if find_spec(top) is None:
            return f"there is no package {top} here; install it, or name another class"
    except (ImportError, ValueError):
        return f"there is no package {top} here; install it, or name another class"
    parts = dotted.split(".")
    lengths = range(len(parts) - 1, 0, -1)
    found = next((length for length in lengths if read(".".join(parts[:length]))), None)
    source = read(".".join(parts[:found])) if found else None
    if source is None:
        return None
    name = parts[found or 0]
    # What is mentioned may be made in some way that is not seen here.
    if re.search(rf"\b({name}|__getattr__|import \*)\b", source.file.read_text(errors="replace")):
        return None
    close = difflib.get_close_matches(name, source.defined, 1)
    hint = f"did you mean {source.name}.{close[0]}?" if close else "name another"
    return f"there is no {name} in {source.name}; {hint}"


@cache
def read(module: str) -> Source | None:
    """The source file of a module; None if it is not read, or there is none."""
    top, *rest = module.split(".")
    is_read = top not in NOT_READ or module.startswith(READ_ANYWAY)
    if not is_read or top in sys.stdlib_module_names:
        return None
    try:
        # Of the top alone: to look up a part would import what it is a part of.
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    paths = [Path(folder, *rest) for folder in folders] if folders else [Path(spec.origin or "")]
    files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py"))]
    try:
        return next((Source(module, file) for file in files if file.is_file()), None)
    except SyntaxError:
        # Python says it better, when a run imports the file.
        return None


def method(node: Definition, name: str) -> ast.FunctionDef | None:
    """A method of a class, by name."""
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return next((part for part in methods if part.name == name), None)
