"""What one process does to use a checkpoint: for every task a file, or what it does by itself."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from omegaconf import OmegaConf

from ..errors import UserError
from . import record
from .context import RunContext
from .image_files import classified, loader_of
from .inputs import take_test_set
from .prediction_files import named, write
from .predictions import Predictions, give_step
from .protocols import Predicts, ReadsImages
from .to_type import Typed, typed_for
from .trained import Trained, trained
from .trainer import build_trainer
from .trainer_arguments import refusing_arguments

# For a predict.yaml that says nothing of it.
ON_ONE_DEVICE: dict[str, Any] = {
    "strategy": {
        "_target_": "onecurve.strategies.single.Single",
        "name": "single",
        "processes": "one",
    },
    "trainer": {"accelerator": "auto", "devices": "auto", "num_nodes": "auto"},
    "data": {},
    "seed": 0,
}


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Predict, in one of three ways.

    A task with a method `predict` (`protocols.Predicts`) does it all by itself. Otherwise
    `predict_step` predicts every sample of the images of `predict.images`, which the data module
    reads as those of training (`protocols.ReadsImages`), or of the data module's loader.

    Args:
        config: The resolved configuration of `predict.py`.
        context: Where the run's record goes; the output's own path is in the configuration.

    Returns:
        Nothing to compare runs by: an empty dictionary.

    Raises:
        UserError: If there is nothing to predict, or no place to write to.
    """
    cfg, run_dir = OmegaConf.create({**ON_ONE_DEVICE, **config}), context.run_dir
    options = {"output": str(run_dir / "predictions"), **config["predict"]}
    predictions = Predictions()
    trainer = build_trainer(cfg, run_dir, [predictions])
    parts = trained(cfg, trainer.precision_plugin.convert_module)
    _refuse(options, parts)
    output = Path(options["output"])
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        facts: dict[str, Any] = {}
        written: list[str] = []
        if not isinstance(parts.task, Predicts):
            facts["predictions"], written = _of_samples(
                parts, trainer, predictions, options, typed_for(run_dir)
            )
        elif trainer.is_global_zero:
            seed_everything(cfg.seed, workers=True, verbose=False)
            _by_itself(
                parts.task, trainer, partial(parts.task.predict, options, parts.data, run_dir)
            )
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(output.parent):
            raise
        raise UserError(
            f"predict.output={output}: {error.strerror}; name a place that can be written to"
        ) from error
    if trainer.is_global_zero:
        facts |= {"strategy": cfg.strategy.name, "world_size": trainer.world_size}
        record.finished(run_dir, {"checkpoint": str(cfg.checkpoint), **facts})
        for line in written:
            print(line)
    return {}


def _refuse(options: dict[str, Any], parts: Trained) -> None:
    images = options.get("images")
    if images and not isinstance(parts.data, ReadsImages):
        raise UserError(
            f"predict.images={images}: the data of this checkpoint ({type(parts.data).__name__}) "
            "are no images that are read from files; leave predict.images out"
        )
    if options.get("figure") and not images:
        raise UserError(
            "predict.figure=true: shows files with their classes; name them, such as "
            "predict.images=photos"
        )


def _by_itself(task: LightningModule, trainer: Trainer, predict: Callable[[], None]) -> None:
    task.eval().to(trainer.strategy.root_device)
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        predict()


def _of_samples(
    parts: Trained,
    trainer: Trainer,
    predictions: Predictions,
    options: dict[str, Any],
    typed: Typed,
) -> tuple[int, list[str]]:
    """Predict all samples, under any strategy, and write a file for each loader.

    Returns:
        How many there are, and lines that say where; nothing elsewhere than on the first rank.
    """
    task, data, _ = parts
    give_step(task)
    if images := options.get("images"):
        files, loader = loader_of(data, images)
        with refusing_arguments():
            trainer.predict(task, loader, return_predictions=False)
    else:
        files = None
        if take_test_set(data) and trainer.is_global_zero:
            name = type(data).__name__
            print(f"{name} has no predict_dataloader: these are the samples of its test_dataloader")
        with refusing_arguments():
            trainer.predict(task, datamodule=data, return_predictions=False)
    count = 0
    lines: list[str] = []
    if not trainer.is_global_zero:
        return count, lines
    output = Path(options["output"])
    of_loaders = predictions.joined()
    names = [str(name) for name in getattr(data, "class_names", None) or ()]
    for number, each in enumerate(of_loaders):
        if each is None:
            raise UserError(
                f"{type(task).__name__}.predict_step: returned nothing; return what it predicts "
                "for each sample, such as a tensor (N,) or (N, C)"
            )
        figure = bool(options.get("figure"))
        if files and (classes := classified(each, files, names, output, typed, figure=figure)):
            count += len(files)
            lines += classes
            continue
        several = len(of_loaders) > 1
        place = named(output, f"-{number}") if several else output
        rows, path = write(each, place, files, names)
        lines.append(f"{rows} predictions: {typed.short(path)}")
        count += rows
    return count, lines
