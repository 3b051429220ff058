"""What is shown once in a run: what it is, and what it is fed with."""

import json
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from ..errors import say
from ..figures import image_grid
from .images import as_arrays, pictures, titles

Batch = tuple[Tensor, Tensor]


def show_text(writer: Any, run_dir: Path) -> None:
    """The command and the resolved configuration."""
    environment = json.loads((run_dir / "environment.json").read_text())
    writer.text("command", shlex.join(environment["command"]))
    writer.text("configuration", (run_dir / "config.yaml").read_text())


class _Forward(nn.Module):
    """Only the network's part of a task: the rest cannot be traced."""

    def __init__(self, task: LightningModule) -> None:
        super().__init__()
        for name, child in task.named_children():
            if next(child.parameters(), None) is not None:
                self.add_module(name, child)
        self._forward = type(task).forward.__get__(task)

    def forward(self, *inputs: Tensor) -> Any:
        return self._forward(*inputs)


def show_graph(writer: Any, task: LightningModule, inputs: tuple[Tensor, ...] | None) -> None:
    """The modules and what passes between them, for one sample."""
    was_training = task.training
    try:
        if inputs is None:
            raise ValueError("neither example_input_array nor prepare(batch) says what enters it")
        task.eval()
        one = tuple(value[:1].cpu() for value in inputs)
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            # Its class is the name of the whole in the graph.
            named = type(type(task).__name__, (_Forward,), {})
            writer.graph(named(task), one)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        say(f"callbacks.tensorboard.graph: the network cannot be traced: {reason}")
    finally:
        task.train(was_training)


def first_images(batch: Any, count: int) -> Batch | None:
    """The first images of a share with their targets, on the CPU; None if it is made otherwise."""
    if not (isinstance(batch, tuple | list) and len(batch) >= 2):
        return None
    images, targets = batch[0], batch[1]
    if not (isinstance(images, Tensor) and isinstance(targets, Tensor)):
        return None
    if images.ndim != 4 or targets.shape[:1] != images.shape[:1] or targets.is_floating_point():
        return None
    return images[:count].cpu(), targets[:count].cpu()


def show_images(writer: Any, trainer: Trainer, shares: Sequence[Batch | None], count: int) -> None:
    """Images as the network sees them, each with the name of its class, or its words."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    known = [share for share in shares if share is not None]
    images = pictures(torch.cat([share[0] for share in known])[:count], data) if known else None
    said = titles(torch.cat([share[1] for share in known])[:count], data) if known else None
    if images is None or said is None:
        say("callbacks: images are left out: a batch must be (images (N, C, H, W), labels (N,))")
        return
    writer.figure("images", image_grid(as_arrays(images), said), 0)


def show_names(writer: Any, trainer: Trainer, run_dir: Path, charts: bool, hparams: bool) -> None:
    """What follows from the names of the metrics that the task logs."""
    logged = sorted(name for name in trainer.callback_metrics if "/" in name)
    tests = [name.replace("val/", "test/", 1) for name in logged if name.startswith("val/")]
    names = [*logged, *tests]
    if charts:
        by_metric: dict[str, list[str]] = {}
        for name in names:
            by_metric.setdefault(name.partition("/")[2], []).append(name)
        writer.charts(by_metric)
    if hparams:
        writer.hparams(overrides(run_dir), names)


def overrides(run_dir: Path) -> dict[str, Any]:
    """What was overridden on the command line, by key; all runs have the strategy and the seed."""
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    values: dict[str, Any] = {"strategy": config["strategy"]["name"], "seed": config["seed"]}
    typed: list[str] = yaml.safe_load((run_dir / ".hydra/overrides.yaml").read_text()) or []
    for override in typed:
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith(("~", "paths", "resume")):
            continue
        # A group such as model=mlp, or a list, stands as it was typed.
        resolved: Any = config
        for name in key.split("."):
            resolved = resolved.get(name) if isinstance(resolved, dict) else None
        values[key] = resolved if isinstance(resolved, bool | int | float) else value
    return values
