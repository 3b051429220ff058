"""Validates a composed configuration against the models of its parts; errors are one line each.

A part has the model of its class, of its group or of its command. A project's own class is
validated by its constructor when it is built: nothing is imported here.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, create_model

from ... import HOMES
from ...config_model import Config, Problem, text
from ...errors import UserError
from ..composed_run import ComposedRun
from ..run.interpolation import dotted, resolved

# Rooms whose `options.py` has the models of their classes: that of `callbacks.katib.KatibMetrics`
# is `KatibMetricsOptions` in `callbacks/options.py`.
ROOMS = ("averaging", "callbacks", "checkpoint", "strategies")
# Models of other classes and of functions. A module of models is imported when one is needed.
TARGETS = {
    **{
        f"lightning.pytorch.callbacks.{name}": f"callbacks.options.{name}"
        for name in (
            "BatchSizeFinder",
            "DeviceStatsMonitor",
            "GradientAccumulationScheduler",
            "LearningRateMonitor",
            "Timer",
        )
    },
    "lightning.pytorch.loggers.WandbLogger": "app.config.loggers.WandbLogger",
    "onecurve.app.displays.callback.Displays": "app.displays.options.Options",
    "onecurve.app.loggers.buffered.BufferedCSVLogger": "app.config.loggers.CSV",
    "onecurve.app.loggers.buffered.BufferedTensorBoardLogger": "app.config.loggers.TensorBoard",
    "onecurve.app.loggers.trackers.comet": "app.config.loggers.CometLogger",
    "onecurve.app.loggers.trackers.mlflow": "app.config.loggers.MLFlowLogger",
    "onecurve.callbacks.progress.progress": "callbacks.options.Progress",
    "onecurve.checkpoint.weights.load_weights": "app.config.optim.LoadWeights",
    "onecurve.optim.optimizers.build_optimizer": "app.config.optim.Optimizer",
    "onecurve.optim.schedulers.cosine": "app.config.optim.Cosine",
    "onecurve.optim.schedulers.no_scheduler": "app.config.optim.NoScheduler",
    "onecurve.optim.schedulers.one_cycle": "app.config.optim.OneCycle",
    "onecurve.optim.schedulers.plateau": "app.config.optim.Plateau",
    "onecurve.optim.schedulers.step": "app.config.optim.Step",
    "onecurve.strategies.mesh.strategy.mesh": "strategies.options.MeshOptions",
}
# Models of groups without a class, by key.
GROUPS = {
    "checkpoint": "app.config.groups.Checkpoint",
    "data": "app.config.groups.EvaluatedData",
    "launch": "app.config.trainer.Launch",
    "parity": "app.config.groups.Parity",
    "paths": "app.config.groups.Paths",
    "plan": "app.config.groups.Plan",
    "predict": "app.config.groups.Predict",
    "sweep": "app.config.groups.Sweep",
    "trainer": "app.config.trainer.Trainer",
}
COMMANDS = ("evaluate", "export", "parity", "plan", "predict", "train")
# Groups that hold one class or function, and groups that hold several by name.
OBJECTS = ("task", "data", "model", "init", "optimizer", "scheduler", "strategy")
COLLECTIONS = ("callbacks", "logger")


def model_of(key: str, node: Mapping[str, Any], command: str = "") -> type[Config] | None:
    """The model of what is at a dotted key of a command's configuration; the top has no key."""
    target = node.get("_target_")
    if isinstance(target, str):
        return of_target(target)
    if not key:
        name = command.capitalize() if command in COMMANDS else "Command"
        return _model(f"app.config.commands.{name}")
    return _model(GROUPS[key]) if key in GROUPS else None


@cache
def of_target(target: str) -> type[Config] | None:
    """The model of a class or a function of the library's table; None for another."""
    public = target.removeprefix("onecurve.")
    target = f"onecurve.{HOMES[public]}.{public}" if public in HOMES else target
    described = TARGETS.get(target)
    library, _, inside = target.partition(".")
    room, name = inside.partition(".")[0], f"{inside.rpartition('.')[2]}Options"
    if library == "onecurve" and room in ROOMS and not described:
        options = import_module(f"onecurve.{room}.options")
        described = f"{room}.options.{name}" if hasattr(options, name) else None
    if described is None:
        return None
    model = _model(described)
    if not target.startswith("onecurve.strategies."):
        return model
    # What its file says about it beside its arguments.
    return create_model(
        model.__name__,
        __base__=model,
        __doc__=model.__doc__,
        name=(str, Field(description="Its name; not to be changed.")),
        processes=(str, Field(description="Its number of processes; not to be changed.")),
    )


def _model(name: str) -> type[Config]:
    module, _, last = name.rpartition(".")
    model: type[Config] = resolve_name(f"onecurve.{module}:{last}")
    return model


# The key of a part of the configuration, with its model, or with what is wrong.
Described = tuple[str, Config]
Found = tuple[str, Problem]


def validate(
    config: DictConfig, config_name: str, usual: Callable[[], Mapping[str, Any]]
) -> list[Described]:
    """Validate every key by itself, reject the first that is wrong, and return parts with a model.

    In place, values get the type of their key: `1e3` becomes an integer, or 88 a string.

    Args:
        config: The composed configuration.
        config_name: Name of the primary configuration, such as "train".
        usual: The values that dotted keys have without overrides; called for an error alone.
    """
    plain: Any = OmegaConf.to_container(config)
    for line in _without_class(plain) if "task" in plain else ():
        raise UserError(line)
    written = dict(dotted(plain))
    for key, target in written.items():
        if key.endswith("._target_") and not refers(target) and not _is_importable(str(target)):
            raise UserError(
                f"{key}={target}: must be the dotted name of a class or a function in an installed "
                f"package, such as {key}=my_package.my_module.MyClass"
            )

    def is_right(key: str, problem: Problem) -> bool:
        if problem.kind == "missing" or problem.name is None:
            return False
        # What a task may not take is not resolved.
        if refers(value := problem.values[problem.name]):
            return True
        # Null by default, or by interpolation of a key such as the run directory, not known yet.
        return value is None and (refers(written[key]) or usual().get(key, ...) is None)

    described, problems, meant = _described(resolved(config), config_name, is_right)
    # Missing keys come first, then unknown ones. Keys that refer to another key come last, so that
    # the error names the other one.
    order = {"missing": 0, "extra_forbidden": 1}
    problems.sort(key=lambda at: (order.get(at[1].kind, 2), refers(written.get(key_of(*at)))))
    for place, problem in problems:
        raise UserError(problem.line(place, usual().get(key_of(place, problem))))
    for key, value in meant.items():
        OmegaConf.update(config, key, value)
    return described


def refusals(config: DictConfig, described: list[Described]) -> Iterator[str]:
    """Errors about combinations of keys that are valid by themselves, one line each."""
    run = ComposedRun(config)
    # Devices and ranks first: the rules of strategies rely on them.
    for key, model in sorted(described, key=lambda at: at[0] not in ("", "trainer", "launch")):
        yield from model.refusals(run, key)


def validate_group(key: str, values: dict[str, Any]) -> None:
    """Validate the keys of one group, as `validate` does."""
    for problem in _model(GROUPS[key]).checked(values).problems:
        if problem.kind != "missing":
            raise UserError(problem.line(key))


def key_of(place: str, problem: Problem) -> str:
    """The dotted key that is wrong."""
    return f"{place}.{problem.name or ''}".strip(".")


def _described(
    values: dict[str, Any], config_name: str, is_right: Callable[[str, Problem], bool]
) -> tuple[list[Described], list[Found], dict[str, Any]]:
    """Parts with a model, what is wrong with others, and keys whose values have another type."""
    described: list[Described] = []
    problems: list[Found] = []
    meant: dict[str, Any] = {}
    for place, node in (("", values), *dotted(values)):
        model = model_of(place, node, config_name) if isinstance(node, dict) else None
        if model is None:
            continue
        made, found, changed = model.checked(node)
        wrong = [(place, each) for each in found if not is_right(key_of(place, each), each)]
        problems += wrong
        if not wrong:
            described.append((place, made))
            meant |= {f"{place}.{name}".lstrip("."): value for name, value in changed.items()}
    return described, problems, meant


def _without_class(plain: dict[str, Any]) -> Iterator[str]:
    """Errors about parts that need a class and name none."""
    parts = {name: plain[name] for name in OBJECTS if isinstance(plain.get(name), dict)}
    for group in COLLECTIONS:
        entries = plain.get(group)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            parts |= {f"{group}.{name}": entry} if entry else {}
    for key, node in parts.items():
        if isinstance(node, dict) and "_target_" in node:
            continue
        shown = key if key in OBJECTS else f"{key}={text(node)}"
        yield (
            f"{shown}: has no class; write `_target_: my_package.my_module.MyClass` into its file, "
            f"or add +{key}._target_=..."
        )


def _is_importable(target: str) -> bool:
    """Whether a dotted name begins with an installed package, of which nothing is imported."""
    package, dot, _ = target.partition(".")
    return bool(package and dot) and (package in sys.modules or find_spec(package) is not None)


def refers(value: Any) -> bool:
    """Whether a value is an interpolation of another key."""
    return isinstance(value, str) and "${" in value
