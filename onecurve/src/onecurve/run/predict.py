"""What one process of predict.py does: write what a trained task predicts for every sample."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import (
    Callback,
    LightningDataModule,
    LightningModule,
    Trainer,
    seed_everything,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import OmegaConf
from torch import Tensor

from ..batch.share import SharedLoader
from ..compat.of_lightning import loaders_of
from ..errors import UserError
from ..strategies.callback_api import CallbackAPI
from ..strategies.prepare import prepared
from . import record
from .context import RunContext
from .instantiate import Trained, load_trained, trainer_errors
from .prediction_files import Written, image_loader, with_suffix, write
from .protocols import Predicts, ReadsImages
from .record import invocation_of
from .trainer import build_trainer


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Predict, in one of three ways.

    A task with a method `predict` (`protocols.Predicts`) does everything itself. Otherwise
    `predict_step` predicts the image files of `predict.images`, which the data module reads as
    those of training (`protocols.ReadsImages`), or the samples of the data module's loader.
    """
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    options = {"output": str(run_dir / "predictions"), **config["predict"]}
    predictions = Predictions()
    trainer = build_trainer(cfg, run_dir, [predictions])
    parts = load_trained(cfg, trainer.precision_plugin.convert_module)
    _reject(options, parts)
    output = Path(options["output"])
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        facts: dict[str, Any] = {}
        written: Written = []
        if not isinstance(parts.task, Predicts):
            facts["predictions"], written = _predict_samples(parts, trainer, predictions, options)
        elif trainer.is_global_zero:
            seed_everything(cfg.seed, workers=True, verbose=False)
            parts.task.eval().to(trainer.strategy.root_device)
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                parts.task.predict(options, parts.data, run_dir)
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(output.parent):
            raise
        raise UserError(
            f"predict.output={output}: {error.strerror}; name a place that can be written to"
        ) from error
    if trainer.is_global_zero:
        facts |= {"strategy": cfg.strategy.name, "world_size": trainer.world_size}
        record.finished(run_dir, {"checkpoint": str(cfg.checkpoint), **facts})
        for what, path in written:
            print(f"{what}: {invocation_of(run_dir).short(path)}")
    return {}


def _reject(options: dict[str, Any], parts: Trained) -> None:
    images = options.get("images")
    if images and not isinstance(parts.data, ReadsImages):
        raise UserError(
            f"predict.images={images}: the data of this checkpoint ({type(parts.data).__name__}) "
            "are not images read from files; leave predict.images out"
        )
    if options.get("figure") and not images:
        raise UserError(
            "predict.figure=true: shows files with their classes; name them, such as "
            "predict.images=photos"
        )


def _predict_samples(
    parts: Trained, trainer: Trainer, predictions: "Predictions", options: dict[str, Any]
) -> tuple[int, Written]:
    """Predict all samples, and write a file for each loader, as `prediction_files.write` does."""
    task, data, _ = parts
    add_predict_step(task)
    files, loader = None, None
    if images := options.get("images"):
        files, loader = image_loader(data, images)
    elif predict_on_test_set(data) and trainer.is_global_zero:
        name = type(data).__name__
        print(f"{name} has no predict_dataloader: these are the samples of its test_dataloader")
    with trainer_errors():
        samples = {"dataloaders": loader} if loader else {"datamodule": data}
        trainer.predict(task, **samples, return_predictions=False)
    count, written = 0, Written()
    if not trainer.is_global_zero:
        return count, written
    output, of_loaders = Path(options["output"]), predictions.joined()
    names = [str(name) for name in getattr(data, "class_names", None) or ()]
    for number, each in enumerate(of_loaders):
        if each is None:
            raise UserError(
                f"{type(task).__name__}.predict_step: returned nothing; return what it predicts "
                "for each sample, such as a tensor (N,) or (N, C)"
            )
        place = with_suffix(output, f"-{number}") if len(of_loaders) > 1 else output
        rows, paths = write(each, place, files, names, bool(options.get("figure")))
        written += paths
        count += rows
    return count, written


class Predictions(Callback):
    """Collects what `predict_step` returns; at the end rank 0 has that of all ranks, in order."""

    def __init__(self) -> None:
        # For each loader what the step returned; None for a batch without a share.
        self.batches: list[list[Any]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches = [[] for _ in range(trainer.predict_loop.num_dataloaders)]

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        combined = loaders_of(trainer.predict_loop)
        assert combined is not None
        loader = combined.flattened[dataloader_idx]
        if isinstance(loader, SharedLoader) and not loader.share(batch_idx).size:
            # This rank had no sample of the batch, and repeated another rank's.
            outputs = None
        self.batches[dataloader_idx].append(move_data_to_device(outputs, torch.device("cpu")))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the shares of each batch, in the order of the ranks."""
        strategy = cast(CallbackAPI, trainer.strategy)
        for loader, mine in enumerate(self.batches):
            together: list[Any] = []
            # Batch by batch: only rank 0 has to hold all of them.
            for index in range(max(strategy.of_all_samples(len(mine)))):
                share = mine[index] if index < len(mine) else None
                shares = strategy.of_all_samples(share)
                if trainer.is_global_zero:
                    together += shares
            self.batches[loader] = together

    def joined(self) -> list[Any]:
        """For each loader the predictions of all its samples; None if there are none."""
        given = [[part for part in parts if part is not None] for parts in self.batches]
        return [joined(parts) if parts else None for parts in given]


def add_predict_step(task: LightningModule) -> None:
    """Give a task without a `predict_step` one that returns the network's outputs."""
    if is_overridden("predict_step", task):
        return

    def predict_step(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return task(*network_inputs(task, batch))

    task.predict_step = predict_step  # type: ignore[method-assign]


def joined(parts: list[Any]) -> Any:
    """Concatenate the predictions of consecutive samples.

    Tensors are concatenated along their first dimension (where the others differ they become a list
    of rows), lists one after the other, dictionaries and tuples entry by entry. Anything else has
    no rows, and becomes a list.
    """
    first = parts[0]
    if isinstance(first, Tensor) and first.ndim:
        if len({part.shape[1:] for part in parts}) == 1:
            return torch.cat(parts)
        return [row for part in parts for row in part]
    if isinstance(first, Mapping):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_asdict"):
        return joined([part._asdict() for part in parts])
    if isinstance(first, tuple):
        return tuple(joined(list(entry)) for entry in zip(*parts, strict=True))
    if isinstance(first, list):
        return [row for part in parts for row in part]
    return parts


def network_inputs(task: LightningModule, batch: Any) -> tuple[Any, ...]:
    """The arguments of the task's `forward` for a batch.

    They are the first part of what its `prepare` returns, or of the batch where it has none.
    """
    made = prepared(task, batch)
    first = batch[0] if isinstance(batch, tuple | list) else batch
    inputs = first if made is None else made.inputs
    return inputs if isinstance(inputs, tuple) else (inputs,)


def bare_trainer(**options: Any) -> Trainer:
    """A Trainer of one process that writes and prints nothing."""
    return Trainer(
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def predict_on_test_set(data: LightningDataModule) -> bool:
    """Whether a data module lacks `predict_dataloader`; its `test_dataloader` takes its place."""
    if is_overridden("predict_dataloader", data):
        return False
    if not is_overridden("test_dataloader", data):
        raise UserError(
            f"data: {type(data).__name__} has neither predict_dataloader nor test_dataloader, so "
            "there are no samples to predict; write one of them"
        )
    setup = data.setup
    data.setup = lambda stage: setup("test")  # type: ignore[method-assign]
    data.predict_dataloader = data.test_dataloader  # type: ignore[method-assign]
    return True
