"""Checks values one by one: each keeps the type of its default, and numbers stay in their range."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError

from ..errors import UserError
from ..strategies.pipeline.limits import SCHEDULES

PRECISIONS = (
    "32-true",
    "bf16-mixed",
    "16-mixed",
    "bf16-true",
    "16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
)


class Range(NamedTuple):
    """Which numbers a key takes, and one that works."""

    example: Any
    least: float = float("-inf")
    most: float = float("inf")
    above: float = float("-inf")
    whole: bool = True
    also: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether a value is allowed."""
        if isinstance(value, bool):
            return False
        if value in self.also:
            return True
        if not isinstance(value, int | float):
            return False
        if self.whole and value != int(value):
            return False
        return self.least <= value <= self.most and value > self.above

    def words(self) -> str:
        """The range as a person would say it."""
        text = "a whole number" if self.whole else "a number"
        bounds = []
        if self.above > float("-inf"):
            bounds.append(f"above {self.above:.15g}")
        if self.least > float("-inf"):
            bounds.append(f"from {self.least:.15g}")
        if self.most < float("inf"):
            bounds.append(f"to {self.most:.15g}")
        also = "".join(f" or {'null' if value is None else value}" for value in self.also)
        return " ".join([text, *bounds]) + also


RANGES: dict[str, Range] = {
    "seed": Range(0, least=0, most=2**32 - 1),
    "data.batch_size": Range(64, least=1),
    "data.image_size": Range(32, least=1),
    "data.channels": Range(3, least=1),
    "data.num_workers": Range(0, least=0),
    "data.num_classes": Range(10, least=2),
    "optimizer.lr": Range(0.001, above=0, whole=False),
    "optimizer.weight_decay": Range(0.01, least=0, whole=False),
    "optimizer.momentum": Range(0.9, least=0, most=1, whole=False),
    "trainer.max_epochs": Range(10, least=1, also=(-1, None)),
    "trainer.max_steps": Range(1000, least=1, also=(-1,)),
    "trainer.num_nodes": Range(1, least=1),
    "trainer.accumulate_grad_batches": Range(1, least=1),
    "trainer.gradient_clip_val": Range(1.0, least=0, whole=False, also=(None,)),
    "trainer.log_every_n_steps": Range(1, least=1),
    "trainer.check_val_every_n_epoch": Range(1, least=1, also=(None,)),
    "trainer.num_sanity_val_steps": Range(0, least=-1),
    "callbacks.checkpoint.last_every_n_steps": Range(100, least=1, also=(None,)),
    "callbacks.checkpoint.last_every_minutes": Range(30, above=0, whole=False, also=(None,)),
    "callbacks.ema.decay": Range(0.999, least=0, most=1, whole=False),
    "callbacks.swa.start": Range(0.75, least=0, whole=False),
    "callbacks.swa.every_n_steps": Range(100, least=1, also=(None,)),
    "callbacks.swa.lr": Range(0.01, above=0, whole=False, also=(None,)),
    "callbacks.swa.anneal_epochs": Range(1, least=0, whole=False),
    "callbacks.throughput.every_n_steps": Range(50, least=1),
    "callbacks.device_stats.every_n_steps": Range(50, least=1),
    "callbacks.nan_guard.every_n_steps": Range(1, least=1),
    "callbacks.lr_finder.min_lr": Range(1e-6, above=0, whole=False),
    "callbacks.lr_finder.max_lr": Range(1.0, above=0, whole=False),
    "callbacks.lr_finder.steps": Range(100, least=20),
    "callbacks.batch_size_finder.first": Range(32, least=1),
    "callbacks.batch_size_finder.largest": Range(8192, least=1),
    "callbacks.batch_size_finder.steps": Range(3, least=1),
    **{
        f"callbacks.{writer}.{key}": Range(example, least=least)
        for writer in ("tensorboard", "wandb")
        for key, example, least in (
            ("images", 32, 0),
            ("predictions", 32, 0),
            ("embedding", 500, 0),
            ("scalars_every_n_steps", 10, 1),
            ("histograms_every_n_steps", 100, 1),
            ("figures_every_n_epochs", 5, 1),
        )
    },
    "launch.max_restarts": Range(0, least=0),
    "launch.timeout_seconds": Range(600, above=0, whole=False),
    "sweep.retries": Range(1, least=0),
    "sweep.parallel": Range(1, least=1),
    "sweep.trials": Range(30, least=1),
    "sweep.seed": Range(0, least=0, most=2**32 - 1),
    "strategy.microbatches": Range(4, least=1),
    "strategy.replicas": Range(1, least=1),
    "strategy.stages_per_rank": Range("auto", least=1, also=("auto",)),
    "strategy.min_params": Range(1_000_000, least=1),
    "strategy.timeout_seconds": Range(1800, above=0, whole=False),
}

CHOICES: dict[str, tuple[Any, ...]] = {
    "callbacks.swa.annealing": ("cosine", "linear"),
    "checkpoint.format": ("file", "sharded"),
    "checkpoint.on_failure": ("continue", "stop"),
    "mode": ("min", "max"),
    "sweep.value": ("last", "best"),
    "sweep.on_failure": ("continue", "stop", "retry"),
    "strategy.communication_dtype": ("bf16", "fp16", None),
    "strategy.schedule": tuple(SCHEDULES),
    "trainer.accelerator": ("auto", "cpu", "gpu", "cuda", "mps"),
    "trainer.precision": PRECISIONS,
    "trainer.gradient_clip_algorithm": ("norm", "value"),
    "trainer.profiler": ("simple", "advanced", "pytorch", None),
}


def check_values(config: DictConfig, defaults: DictConfig) -> None:
    """Refuse the first value that cannot be right.

    Args:
        config: The composed configuration.
        defaults: The same choice of files, without overrides of single keys.

    Raises:
        UserError: Naming the key, the value, what is allowed and a value that works.
    """
    usual = dict(dotted(_resolved(defaults)))
    for key, value in dotted(_resolved(config)):
        if value is None and usual.get(key, value) is None:
            continue
        if key in RANGES:
            allowed = RANGES[key]
            if not allowed.holds(value):
                example = usual.get(key, allowed.example)
                example = example if allowed.holds(example) else allowed.example
                raise UserError(
                    f"{key}={_text(value)}: must be {allowed.words()}, such as {key}={example}"
                )
        elif key in CHOICES:
            if value not in CHOICES[key]:
                close = difflib.get_close_matches(str(value), map(str, CHOICES[key]), 1)
                options = ", ".join(map(str, CHOICES[key]))
                example = close[0] if close else CHOICES[key][0]
                raise UserError(
                    f"{key}={_text(value)}: must be one of {options}, such as {key}={example}"
                )
        elif key in usual and not _same_kind(value, usual[key]):
            example = f"{key}={_text(usual[key])}"
            raise UserError(f"{key}={_text(value)}: must be {_kind(usual[key])}, such as {example}")


def dotted(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a nested dictionary with its value, such as ("optimizer.lr", 0.001)."""
    for name, value in config.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")


def _resolved(config: DictConfig) -> Any:
    """Plain containers with references followed, unless one leads to a value still missing."""
    try:
        return OmegaConf.to_container(config, resolve=True)
    except InterpolationToMissingValueError:
        return OmegaConf.to_container(config)


def _same_kind(value: Any, usual: Any) -> bool:
    # A text or null by default says nothing about what else may stand there ("auto" or 2).
    if usual is None or value is None or isinstance(usual, str):
        return not (isinstance(usual, str) and isinstance(value, Mapping))
    if isinstance(usual, bool) or isinstance(value, bool):
        return isinstance(usual, bool) and isinstance(value, bool)
    if isinstance(usual, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(usual))


def _kind(usual: Any) -> str:
    if isinstance(usual, bool):
        return "true or false"
    if isinstance(usual, int | float):
        return "a number"
    return "a list" if isinstance(usual, list) else "a mapping"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value)
