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
from omegaconf import OmegaConf
from torch import Tensor
from torch.export import Dim, ExportedProgram, ShapesCollection

from ...compat.of_torch import tree_leaves
from ...errors import UserError, missing_packages
from ...launch.context import RunContext
from . import record
from .instantiate import describe_error, load_trained
from .predict import first_batch, tensor_inputs, writing
from .record import invocation_of

TOLERANCE = 1e-4
"""How far outputs may be from the task's, as a part of the largest: kernels round in float32."""
BATCH_SIZES = (1, 7)  # sizes that are compared; the example of the export has another one
EXAMPLE_SIZE = 4
METADATA = "onecurve.json"  # the name of the metadata in files of both formats
Function = Callable[..., list[Tensor]]


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Export the network of a checkpoint with any size of batch, and compare what is written."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    needed = ("onnx", "onnxscript", "onnxruntime") if cfg.format == "onnx" else ()
    if refusal := missing_packages("format=onnx", needed, "onnx", "format=torch"):
        raise UserError(refusal)
    parts = load_trained(cfg)
    task, name = parts.task.eval(), type(parts.task).__name__
    inputs = tensor_inputs(task, first_batch(parts.data))
    about = {
        "task": str(parts.config.task._target_),
        "inputs": [
            {"name": name, "shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)[6:]}
            for name, value in zip(numbered("inputs", len(inputs)), inputs, strict=True)
        ],
        "class_names": [str(name) for name in getattr(parts.data, "class_names", None) or ()],
    }
    suffix, save = {"torch": (".pt2", _save_torch), "onnx": (".onnx", _save_onnx)}[cfg.format]
    output = Path(cfg.output)
    output = output if output.suffix == suffix else output.with_name(output.name + suffix)
    # Only a file that was compared is moved to its place.
    with writing("output", output), TemporaryDirectory(dir=output.parent) as folder:
        with _export_errors(cfg.format, name):
            exported = save(_program(task, inputs), Path(folder, output.name), about)
            difference = _largest_difference(task, exported, inputs)
        if not difference <= TOLERANCE:
            raise UserError(
                f"format={cfg.format}: the outputs of what was exported are {difference:.1e} of "
                f"the largest away from those of {name}, and may be {TOLERANCE:.0e} away: "
                "PyTorch's exporter changes an operation of forward, or forward draws at random; "
                f"try format={'onnx' if cfg.format == 'torch' else 'torch'}"
            )
        # ONNX keeps large weights in a second file.
        for file in Path(folder).iterdir():
            file.replace(output.with_name(file.name))
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


def _program(task: torch.nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    batch, shapes = Dim("batch"), ShapesCollection()  # type: ignore[no-untyped-call]
    inputs = resized(EXAMPLE_SIZE, inputs)
    for value in inputs:
        shapes[value] = {0: batch}
    with torch.no_grad():
        return torch.export.export(task, inputs, dynamic_shapes=shapes)


def _largest_difference(
    task: torch.nn.Module, exported: Function, inputs: tuple[Tensor, ...]
) -> float:
    """The difference to the task's outputs, relative to the largest; NaN for other shapes."""
    differences = []
    for size in BATCH_SIZES:
        batch = resized(size, inputs)
        with torch.no_grad():
            expected, outputs = tree_leaves(task(*batch)), exported(*batch)
        if [value.shape for value in expected] != [value.shape for value in outputs]:
            return math.nan
        for right, value in zip(expected, outputs, strict=True):
            distance = (value.double() - right.double()).abs().max()
            differences.append(distance / right.double().abs().max().clamp_min(1e-12))
    return torch.stack(differences).max().item()  # NaN if one is


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


def _save_torch(program: ExportedProgram, path: Path, about: dict[str, Any]) -> Function:
    """Write a program, and read it as a function of inputs (N, ...)."""
    torch.export.save(program, path, extra_files={METADATA: json.dumps(about)})
    module = torch.export.load(path).module()
    return lambda *inputs: tree_leaves(module(*inputs))


def _save_onnx(program: ExportedProgram, path: Path, about: dict[str, Any]) -> Function:
    """Write a network as ONNX, and read it as a function of inputs (N, ...)."""
    import onnxruntime

    count = len(program.graph_signature.user_inputs)
    onnx: Any = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=numbered("inputs", count),
        output_names=numbered("outputs", len(program.graph_signature.user_outputs)),
        dynamic_shapes=tuple({0: Dim("batch")} for _ in range(count)),
    )
    onnx.model.metadata_props[METADATA] = json.dumps(about)
    onnx.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(output) for output in session.run(None, arrays)]

    return run


def numbered(what: str, count: int) -> list[str]:
    """The names of inputs or outputs: "inputs", or "inputs_0", "inputs_1", ..."""
    return [what] if count == 1 else [f"{what}_{number}" for number in range(count)]
