"""What predict.py needs: a callback that writes what a trained task predicts for every sample.

Predictions are written by their type: as a table, or as tensors.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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

from ... import machine
from ...batch.share import SharedLoader
from ...compat.of_lightning import loaders_of
from ...compat.of_torch import tree_leaves
from ...errors import UserError
from ...strategies.callback_api import CallbackAPI
from ...strategies.prepare import prepared
from .protocols import Predicts
from .record import invocation_of

if TYPE_CHECKING:
    from .run import Run

MOST_COLUMNS = 100
SUFFIXES = (".csv", ".pt")


class Predictions(Callback):
    """Collects on rank 0 what `predict_step` returns on all ranks, in the order of the samples."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []  # of each loader what the step returned, by rank

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
        outputs = move_data_to_device(outputs, torch.device("cpu"))
        shares = cast(CallbackAPI, trainer.strategy).gather_from_replicas(outputs)
        if trainer.is_global_zero:
            self.batches[dataloader_idx] += [share for share in shares if share is not None]

    def joined(self) -> list[Any]:
        """For each loader the predictions of all its samples; None if there are none."""
        return [joined(shares) if shares else None for shares in self.batches]


class PredictionWriter(Predictions):
    """Writes the predictions of all samples, as the group ``predict`` says: a file a loader."""

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self.run = run
        default = {"output": str(run.dir / "predictions")}
        self.options: dict[str, Any] = {**default, **OmegaConf.to_container(run.cfg.predict)}  # type: ignore[dict-item]
        self.output = Path(self.options["output"])

    def samples(self, task: LightningModule, data: LightningDataModule) -> dict[str, Any]:
        """What `Trainer.predict` is given beside the task: the data module.

        A task without a `predict_step` gets one that returns its network's outputs.
        """
        add_predict_step(task)
        if predict_on_test_set(data) and machine.is_first_rank():
            name = type(data).__name__
            print(f"{name} has no predict_dataloader: these are the samples of its test_dataloader")
        return {"datamodule": data}

    def task_wrote(
        self, trainer: Trainer, task: LightningModule, data: LightningDataModule
    ) -> bool:
        """Whether the task does everything itself, by a method `predict` (`protocols.Predicts`)."""
        if not isinstance(task, Predicts):
            return False
        if trainer.is_global_zero:
            seed_everything(self.run.cfg.seed, workers=True, verbose=False)
            task.eval().to(trainer.strategy.root_device)
            in_precision = trainer.precision_plugin.forward_context()
            with writing("predict.output", self.output), torch.no_grad(), in_precision:
                task.predict(self.options, data, self.run.dir)
        return True

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        of_loaders, count = self.joined(), 0
        output = self.output.with_suffix("") if self.output.suffix in SUFFIXES else self.output
        for number, each in enumerate(of_loaders):
            if each is None:
                raise UserError(
                    f"{type(pl_module).__name__}.predict_step: returned nothing; return what "
                    "it predicts for each sample, such as a tensor (N,) or (N, C)"
                )
            suffix = f"-{number}" if len(of_loaders) > 1 else ""
            with writing("predict.output", self.output):
                to = output.with_name(output.name + suffix)
                rows, path = _write(each, to, trainer.datamodule)  # type: ignore[attr-defined]
            count += rows
            print(f"{rows} predictions: {invocation_of(self.run.dir).short(path)}")
        self.run.record(predictions=count)


@contextmanager
def writing(key: str, output: Path) -> Iterator[None]:
    """Creates the folder of a file; what cannot be written there is reported in one line."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(output.parent):
            raise
        raise UserError(
            f"{key}={output}: {error.strerror}; name a place that can be written to"
        ) from error


def add_predict_step(task: LightningModule) -> None:
    """Give a task without a `predict_step` one that returns the network's outputs."""
    if is_overridden("predict_step", task):
        return

    def predict_step(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return task(*network_inputs(task, batch))

    task.predict_step = predict_step  # type: ignore[method-assign]


def joined(parts: list[Any]) -> Any:
    """Concatenate the predictions of consecutive samples.

    Tensors whose rows differ in shape become a list of them. Dictionaries and tuples are joined
    entry by entry. Anything else has no rows, and becomes a list.
    """
    first = parts[0]
    is_tensor = isinstance(first, Tensor) and first.ndim > 0
    if is_tensor and len({batch.shape[1:] for batch in parts}) == 1:
        return torch.cat(parts)
    if is_tensor or isinstance(first, list):
        return [row for batch in parts for row in batch]
    if isinstance(first, Mapping):
        return {key: joined([batch[key] for batch in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(joined(list(entry)) for entry in zip(*parts, strict=True))
    return parts


def network_inputs(task: LightningModule, batch: Any) -> tuple[Any, ...]:
    """The arguments of the task's `forward` for a batch.

    They are the first part of what its `prepare` returns, or of the batch where it has none.
    """
    prepared_batch = prepared(task, batch)
    first = batch[0] if isinstance(batch, tuple | list) else batch
    inputs = first if prepared_batch is None else prepared_batch.inputs
    return inputs if isinstance(inputs, tuple) else (inputs,)


def tensor_inputs(task: LightningModule, batch: Any) -> tuple[Tensor, ...]:
    """`network_inputs`, which must be tensors with a row for each sample."""
    inputs = network_inputs(task, batch)
    are_tensors = all(isinstance(value, Tensor) and value.ndim for value in inputs)
    if not inputs or not are_tensors or len({len(value) for value in inputs}) != 1:
        raise UserError(
            f"{type(task).__name__}: its network takes something other than tensors with a row "
            "for each sample; return such tensors from prepare"
        )
    return inputs


def first_batch(data: LightningDataModule, stage: str = "predict") -> Any:
    """The first batch of the samples to predict, or to train on, as a step gets it on the CPU."""
    if stage == "predict":
        predict_on_test_set(data)
    data.prepare_data()
    data.setup(stage)
    loaders = data.predict_dataloader() if stage == "predict" else data.train_dataloader()
    batch = next(iter(loaders[0] if isinstance(loaders, list | tuple) else loaders))
    return data.on_after_batch_transfer(data.on_before_batch_transfer(batch, 0), 0)


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


def _write(predictions: Any, output: Path, data: LightningDataModule) -> tuple[int, Path]:
    """Write the predictions of a data set; returns the number of rows, and the file.

    Numbers (N,) or (N, C), N strings, or a dictionary of such columns, become `output.csv`, whose
    first column has the number of each sample, or its path in ``predicted_files`` of the data
    module. Everything else becomes `output.pt`, for ``torch.load``.
    """
    if columns := _columns(predictions, getattr(data, "class_names", None) or ()):
        path = output.with_name(f"{output.name}.csv")
        count = len(next(iter(columns.values())))
        files: Sequence[object] = getattr(data, "predicted_files", ())
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["file" if files else "sample", *columns])
            writer.writerows(zip(files or range(count), *columns.values(), strict=True))
        return count, path
    path = output.with_name(f"{output.name}.pt")
    torch.save(predictions, path)
    rows = tree_leaves(predictions)[0] if isinstance(predictions, Mapping | tuple) else predictions
    return len(rows), path


def _columns(predictions: Any, class_names: Sequence[object]) -> dict[str, list[Any]]:
    """The columns of a table by name, which has names of classes or numbers; else empty."""
    is_table = isinstance(predictions, Tensor) and predictions.ndim == 2
    if is_table and (count := predictions.shape[1]) <= MOST_COLUMNS:
        names = class_names if len(set(class_names)) == count else range(count)
        predictions = dict(zip(names, predictions.unbind(1), strict=True))
    elif not isinstance(predictions, Mapping):
        predictions = {"prediction": predictions}
    columns = {str(name): _cells(value) for name, value in predictions.items()}
    lengths = {len(cells) for cells in columns.values()}
    return columns if len(lengths) == 1 and 0 not in lengths else {}


def _cells(column: Any) -> list[Any]:
    """The values of a column; else empty."""
    if isinstance(column, list) and all(isinstance(each, str) for each in column):
        return column
    if not isinstance(column, Tensor) or column.ndim != 1:
        return []
    # NumPy's numbers are written with as many digits as restore them.
    return list((column.float() if column.dtype == torch.bfloat16 else column).numpy())
