"""Builds the objects that a configuration describes, with errors in one line."""

import re
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import lightning.pytorch
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from ...checkpoint.format import by_own_names, network_mismatch, read_checkpoint, trained_config
from ...errors import UserError, in_short, of_the_project, user_error_behind
from ...spelling import nearest
from .constructors import model_of_constructor
from .interpolation import OF_A_TASK, in_one_line

# What constructors raise about their arguments. Other errors are bugs in them, and keep their
# traceback.
ARGUMENT_ERRORS = (
    *(ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError, InstantiationException, MisconfigurationException),
)

LIGHTNING = str(Path(lightning.pytorch.__file__).parent)
# Arguments of a Trainer that are no keys below `trainer`.
ELSEWHERE = {"strategy", "callbacks", "logger", "default_root_dir", "plugins"}
TRAINER_KEYS = "|".join(signature(Trainer).parameters.keys() - ELSEWHERE)
# How messages of Lightning name an argument: `max_time`, `Trainer(max_time=None)`.
ARGUMENT = re.compile(rf"`(?:Trainer\()?({TRAINER_KEYS})(=\w+)?\)?`")
OFFERED = {"total_steps", "monitor", "mode"}  # to a scheduler
# The class that each group describes.
KINDS: dict[str, type[Any]] = {
    "callbacks": Callback,
    "data": LightningDataModule,
    "logger": Logger,
    "model": nn.Module,
    "strategy": Strategy,
    "task": LightningModule,
}


@contextmanager
def building(key: str) -> Iterator[None]:
    """Reports an error of what is built here from the configuration at `key`, in one line."""
    try:
        yield
    except ARGUMENT_ERRORS as error:
        if refusal := user_error_behind(error):
            raise refusal from None
        if isinstance(error, OmegaConfBaseException):
            raise in_one_line(error) from None
        raise UserError(f"{key}: {describe_error(error)}") from error


def build(key: str, node: Any, **parts: Any) -> Any:
    """Build what the configuration at `key` describes, of the class that the key is known for."""
    with building(key):
        built = instantiate(validated(key, node, parts), **parts)
    group = key.partition(".")[0]
    kind = KINDS.get(group if group in ("callbacks", "logger") else key, object)
    if not isinstance(built, kind):
        packages = {base.__module__.partition(".")[0] for base in type(built).__mro__}
        instead = "name such a class"
        if "pytorch_lightning" in packages:
            instead = "import lightning instead of pytorch_lightning, whose classes are others"
        raise UserError(
            f"{key}._target_={node['_target_']}: makes a {type(built).__name__}, and {key} must be "
            f"a {kind.__name__}; {instead}"
        )
    return built


def build_group(key: str, node: DictConfig | None, is_later_job: bool = False) -> list[Any]:
    """Build the entries of a group of several, in their order; those that are null are left out.

    A later job of a sweep does not show the layers, as the first one has shown them.
    """
    parts = [build(f"{key}.{name!s}", entry) for name, entry in (node or {}).items() if entry]
    return [each for each in parts if not (is_later_job and isinstance(each, ModelSummary))]


def validated(key: str, node: Any, parts: Container[str] = ()) -> Any:
    """A node of the configuration with its values as the model of each class converts them.

    That is the `Config` in a class, or the constructor of one of the project's. A class that does
    not exist, and a value that its model rejects, are a UserError. What is given beside the node is
    in `parts`.
    """
    if OmegaConf.is_config(node):
        node = OmegaConf.to_container(node, resolve=True)
    if not isinstance(node, dict):
        return node
    node = {name: validated(f"{key}.{name}", value) for name, value in node.items()}
    target = node.get("_target_")
    resolved = _resolved(key, target) if isinstance(target, str) else None
    model = _config_of(resolved) or model_of_constructor(resolved)
    if model is None:
        return node
    checked = model.checked(node)
    for problem in checked.problems:
        if problem.kind == "missing" and problem.name in parts:
            continue
        raise UserError(problem.line(key))
    return node | checked.changed


def _resolved(key: str, target: str) -> Any:
    """What a `_target_` names: as Hydra does, each name is an attribute, or else a module."""
    resolved: Any = None
    path = ""
    for name in target.split("."):
        package, path = path, f"{path}.{name}" if path else name
        if hasattr(resolved, name):
            resolved = getattr(resolved, name)
            continue
        try:
            resolved = import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise  # what the file of the class imports is missing
            submodules = iter_modules(getattr(resolved, "__path__", ()))
            close = nearest(name, [*dir(resolved), *(each.name for each in submodules)])
            meant = target.replace(path, f"{package}.{close}", 1)
            raise UserError(
                f"{key}._target_={target}: there is no {name} in {package}; "
                + (f"did you mean {meant}?" if close else "name another")
            ) from None
    return resolved


def _config_of(target: Any) -> Any:
    """The `Config` of a class, unless a class derived from it has its own ``__init__``."""
    for each in getattr(target, "__mro__", (target,)):
        model = vars(each).get("Config") if hasattr(each, "__dict__") else None
        if hasattr(model, "checked"):
            return model
        if "__init__" in getattr(each, "__dict__", ()):
            return None
    return None


def with_key(key: str, built: Any) -> Any:
    """Let a partial, such as an optimizer without its parameters, report errors with its key.

    A scheduler that does not take one of `OFFERED`, such as a class of PyTorch, does not get it.
    """
    if not callable(built):
        return built

    def call(*arguments: Any, **options: Any) -> Any:
        with building(key):
            takes = signature(built).parameters
            takes_all = any(each.kind == Parameter.VAR_KEYWORD for each in takes.values())
            left_out = () if takes_all else OFFERED - takes.keys()
            return built(*arguments, **{n: options[n] for n in options if n not in left_out})

    return call


def describe_error(error: BaseException) -> str:
    """An error, and the lines of the project's code that led to it, the last one first."""
    while isinstance(error, InstantiationException | ImportError) and error.__cause__ is not None:
        error = error.__cause__
    text = in_short(error, 300)
    if not isinstance(error, ValueError | InstantiationException | MisconfigurationException):
        text = f"{type(error).__name__}: {text}"
    places = [
        f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        for trace in reversed(of_the_project(error))
    ]
    where = f" ({', called in '.join(places)})" if places else ""
    return f"{text}{where}; HYDRA_FULL_ERROR=1 shows the traceback"


@contextmanager
def trainer_errors() -> Iterator[None]:
    """Reports an error of the Trainer about its own arguments, such as `max_time`, in one line.

    Errors of other code keep their traceback.
    """
    try:
        yield
    except (ValueError, TypeError, MisconfigurationException) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        text = in_short(error, 400).rstrip(".")
        if not raised_in.startswith(LIGHTNING) or with_keys(text) == text:
            raise
        raise UserError(f"{with_keys(text)}; HYDRA_FULL_ERROR=1 shows the traceback") from error


def with_keys(text: str) -> str:
    """A message of Lightning with the keys of the configuration: `trainer.max_time=null`."""
    keys = ARGUMENT.sub(lambda quoted: f"trainer.{quoted[1]}{quoted[2] or ''}", text)
    return re.sub(r"(trainer\.\w+)=None", r"\1=null", keys)


def build_task(cfg: DictConfig, **given: Any) -> LightningModule:
    """Build the LightningModule of a training configuration, with initial weights.

    `given` are arguments that replace those of the configuration. Beside them it gets those of
    `network`, `optimizer` and `scheduler` that its ``__init__`` takes.
    """
    with building("task"):
        validated("task", cfg.task, given)
        kind = get_class(cfg.task._target_)
        takes = parts_taken(kind)
    parts = dict(given)
    takes -= set(parts)
    for group, part in OF_A_TASK.items():
        if part in takes and not cfg.get(group):
            raise UserError(
                f"{group}: {kind.__name__} takes a {part}, and there is none; leave ~{group} out, "
                f"or choose a {group} that --help lists"
            )
    if "network" in takes:
        parts["network"] = build("model", cfg.model)
        with building("init"):
            instantiate(validated("init", cfg.init))(parts["network"])
    for name in ("optimizer", "scheduler"):
        if name in takes:
            with building(name):
                # Lists of OmegaConf's own could not be read again from a checkpoint.
                node = validated(name, cfg[name])
                parts[name] = with_key(name, instantiate(node, _convert_="all"))
    task: LightningModule = build("task", cfg.task, **parts)
    return task


def parts_taken(kind: type[Any]) -> set[str]:
    """Which of network, optimizer and scheduler a task takes; all where it takes any arguments."""
    arguments = signature(kind).parameters.values()
    # LightningModule's own takes any arguments, and ignores them.
    has_own = getattr(kind, "__init__", None) is not getattr(LightningModule, "__init__", None)
    if has_own and any(argument.kind == Parameter.VAR_KEYWORD for argument in arguments):
        return set(OF_A_TASK.values())
    return {argument.name for argument in arguments} & {*OF_A_TASK.values()}


class Trained(NamedTuple):
    """A task with the weights of a checkpoint, and its data."""

    task: LightningModule
    data: LightningDataModule
    config: DictConfig  # of the training run


def load_trained(
    cfg: DictConfig,
    convert: Callable[[nn.Module], nn.Module] = lambda module: module,
    is_checked: bool = True,
) -> Trained:
    """Build task and data from the configuration in a checkpoint, and load the weights.

    `cfg.data` has values to replace; null replaces none. `convert` gives the task the precision of
    the run before weights are loaded, so that float64 is not rounded. For `is_checked` see
    `read_checkpoint`.
    """
    checkpoint = read_checkpoint(cfg.checkpoint, is_checked=is_checked)
    config = OmegaConf.create(trained_config(checkpoint, cfg.checkpoint))
    seed_everything(config.seed, workers=True, verbose=False)
    changes = {key: value for key, value in cfg.data.items() if value is not None}
    with building("data"):
        data = instantiate(validated("data", OmegaConf.merge(config.data, changes)))
    task = build_task(config)
    convert(task)
    if why := network_mismatch(task, checkpoint):
        raise UserError(
            f"checkpoint={cfg.checkpoint}: {why}; its model or task has changed since: "
            "give one that was trained with what is there now"
        )
    task.load_state_dict(by_own_names(task, checkpoint["state_dict"]))
    return Trained(task, data, config)
