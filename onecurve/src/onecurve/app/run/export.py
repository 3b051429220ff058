"""What `onecurve export` does: write a trained network by torch.export, or as ONNX."""

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from omegaconf import OmegaConf
from torch import Tensor
from torch.export import Dim, ExportedProgram, ShapesCollection

from ...compat.of_torch import tree_leaves
from ...errors import UserError, missing_packages
from ...launch.context import RunContext
from . import record
from .instantiate import describe_error, load_trained
from .predict import bare_trainer, network_inputs, predict_on_test_set
from .record import invocation_of

TOLERANCE = 1e-4
"""How far outputs may be from the task's, as a part of the largest: kernels round in float32."""
BATCH_SIZES = (1, 7)  # sizes that are compared; the example of the export has another one
EXAMPLE_SIZE = 4
METADATA = "onecurve.json"  # the name of the metadata in files of both formats
Save = Callable[[ExportedProgram, Path, str], None]
Load = Callable[[Path], Callable[..., list[Tensor]]]


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Export the network of a checkpoint with any size of batch, and compare what is written."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    needed = ("onnx", "onnxscript", "onnxruntime") if cfg.format == "onnx" else ()
    if refusal := missing_packages("format=onnx", needed, "onnx", "format=torch"):
        raise UserError(refusal)
    parts = load_trained(cfg)
    task = parts.task.eval()
    inputs = example_inputs(task, parts.data)
    with _export_errors(cfg.format, type(task).__name__):
        program = _program(task, resized(EXAMPLE_SIZE, inputs))
    metadata = {
        "task": str(parts.config.task._target_),
        "inputs": [
            {"name": name, "shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)[6:]}
            for name, value in zip(numbered("inputs", len(inputs)), inputs, strict=True)
        ],
        "class_names": [str(name) for name in getattr(parts.data, "class_names", None) or ()],
    }
    suffix, save, load = FORMATS[cfg.format]
    output = Path(cfg.output)
    output = output if output.suffix == suffix else output.with_name(output.name + suffix)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Only a file that was compared is moved to its place.
        with TemporaryDirectory(dir=output.parent) as folder:
            unfinished = Path(folder, output.name)
            with _export_errors(cfg.format, type(task).__name__):
                save(program, unfinished, json.dumps(metadata))
                difference = _largest_difference(task, load(unfinished), inputs)
            if not difference <= TOLERANCE:
                raise UserError(
                    f"format={cfg.format}: the outputs of what was exported are "
                    f"{difference:.1e} of the largest away from those of {type(task).__name__}, "
                    f"and may be {TOLERANCE:.0e} away: PyTorch's exporter changes an operation of "
                    "forward, or forward draws at random; try "
                    f"format={'onnx' if cfg.format == 'torch' else 'torch'}"
                )
            # ONNX keeps large weights in a second file.
            for file in Path(folder).iterdir():
                file.replace(output.with_name(file.name))
    except OSError as error:
        raise UserError(
            f"output={output}: {error.strerror}; name a place that can be written to"
        ) from error
    facts = {"checkpoint": str(cfg.checkpoint), "output": str(output), "furthest": difference}
    record.finished(run_dir, facts)
    sizes = " and ".join(map(str, BATCH_SIZES))
    print(
        f"Exported: {invocation_of(run_dir).short(output)}; for batches of {sizes} its outputs are "
        f"the task's to {difference:.1e} of the largest (allowed: {TOLERANCE:.0e})"
    )
    return {}


def resized(size: int, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A batch of another size; samples are repeated if there are too few."""
    rows = torch.arange(size) % len(values[0])
    return tuple(value[rows] for value in values)


def example_inputs(task: LightningModule, data: LightningDataModule) -> tuple[Tensor, ...]:
    """The network's inputs for the first batch of the samples to predict, on the CPU."""
    found: list[tuple[Any, ...]] = []

    def look(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> bool:
        found.append(network_inputs(task, batch))
        return True

    trainer = bare_trainer(accelerator="cpu", limit_predict_batches=1, inference_mode=False)
    predict_on_test_set(data)
    task.predict_step = look  # type: ignore[method-assign]
    trainer.predict(task, datamodule=data, return_predictions=False)
    del task.predict_step
    task.trainer = None
    inputs = found[0] if found else ()
    are_tensors = all(isinstance(value, Tensor) and value.ndim for value in inputs)
    if not inputs or not are_tensors or len({len(value) for value in inputs}) != 1:
        raise UserError(
            f"{type(task).__name__}: its network takes something other than tensors with a row "
            "for each sample, which cannot be exported; return such tensors from prepare"
        )
    return inputs


def _program(task: torch.nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    batch = Dim("batch")
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for value in inputs:
        shapes[value] = {0: batch}
    with torch.no_grad():
        return torch.export.export(task, inputs, dynamic_shapes=shapes)


def _largest_difference(
    task: torch.nn.Module, exported: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...]
) -> float:
    """The difference to the task's outputs, relative to the largest; infinite for other shapes."""
    difference = 0.0
    for size in BATCH_SIZES:
        batch = resized(size, inputs)
        with torch.no_grad():
            expected, given = tree_leaves(task(*batch)), exported(*batch)
        if [value.shape for value in expected] != [value.shape for value in given]:
            return float("inf")
        for right, value in zip(expected, given, strict=True):
            distance = (value.double() - right.double()).abs().max()
            relative = (distance / right.double().abs().max().clamp_min(1e-12)).item()
            difference = max(difference, float("inf") if math.isnan(relative) else relative)
    return difference


@contextmanager
def _export_errors(kind: str, task: str) -> Iterator[None]:
    """Reports an error of PyTorch's exporters, which print pages, in one line."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except OSError:
        raise
    except Exception as error:
        raise UserError(
            f"format={kind}: {task}.forward cannot be exported with any size of batch: "
            f"{describe_error(error)}"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _save_torch(program: ExportedProgram, path: Path, metadata: str) -> None:
    torch.export.save(program, path, extra_files={METADATA: metadata})


def _load_torch(path: Path) -> Callable[..., list[Tensor]]:
    module = torch.export.load(path).module()
    return lambda *inputs: tree_leaves(module(*inputs))


def _save_onnx(program: ExportedProgram, path: Path, metadata: str) -> None:
    given = len(program.graph_signature.user_inputs)
    made = len(program.graph_signature.user_outputs)
    onnx: Any = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=numbered("inputs", given),
        output_names=numbered("outputs", made),
        dynamic_shapes=tuple({0: Dim("batch")} for _ in range(given)),
    )
    onnx.model.metadata_props[METADATA] = metadata
    onnx.save(path)


def _load_onnx(path: Path) -> Callable[..., list[Tensor]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(None, arrays)]

    return run


def numbered(what: str, count: int) -> list[str]:
    """The names of inputs or outputs: "inputs", or "inputs_0", "inputs_1", ..."""
    return [what] if count == 1 else [f"{what}_{number}" for number in range(count)]


# By the value of `format`: the suffix, how a program and its metadata are written, and how they are
# read as a function of inputs (N, ...).
FORMATS: dict[str, tuple[str, Save, Load]] = {
    "torch": (".pt2", _save_torch, _load_torch),
    "onnx": (".onnx", _save_onnx, _load_onnx),
}
