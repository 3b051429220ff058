"""What `onecurve export` does: write a trained network by torch.export, or as ONNX."""

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
from torch import Tensor, nn
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
EXAMPLE_SIZE, COMPARED_SIZE = 4, 7  # of batches: what is exported takes any number of samples


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Export the network of a checkpoint with any size of batch, and compare what is written."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    needed = ("onnx", "onnxscript", "onnxruntime") if cfg.format == "onnx" else ()
    if refusal := missing_packages("format=onnx", needed, "onnx", "format=torch"):
        raise UserError(refusal)
    task, data, _ = load_trained(cfg)
    task.eval()
    inputs, name = tensor_inputs(task, first_batch(data)), type(task).__name__
    suffix, write = {"torch": (".pt2", _write_torch), "onnx": (".onnx", _write_onnx)}[cfg.format]
    output = Path(cfg.output)
    output = output if output.suffix == suffix else output.with_name(output.name + suffix)
    # Only a file that was compared is moved to its place.
    with writing("output", output), TemporaryDirectory(dir=output.parent) as folder:
        with _export_errors(cfg.format, name):
            exported = write(_program(task, inputs), Path(folder, output.name))
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
    record.finished(run_dir, {"checkpoint": str(cfg.checkpoint), "output": str(output)})
    print(
        f"Exported: {invocation_of(run_dir).short(output)}; for a batch of {COMPARED_SIZE} its "
        f"outputs are the task's to {difference:.1e} of the largest (allowed: {TOLERANCE:.0e})"
    )
    return {}


def _resized(size: int, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A batch of another size; samples are repeated if there are too few."""
    rows = torch.arange(size) % len(values[0])
    return tuple(value[rows] for value in values)


def _program(task: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    batch, shapes = Dim("batch"), ShapesCollection()  # type: ignore[no-untyped-call]
    inputs = _resized(EXAMPLE_SIZE, inputs)
    for value in inputs:
        shapes[value] = {0: batch}
    with torch.no_grad():
        return torch.export.export(task, inputs, dynamic_shapes=shapes)


def _write_torch(program: ExportedProgram, path: Path) -> Callable[..., Any]:
    """Write a program; returns what is read again, as a function of its inputs."""
    torch.export.save(program, path)
    return torch.export.load(path).module()


def _write_onnx(program: ExportedProgram, path: Path) -> Callable[..., Any]:
    """Write a network as ONNX; returns it as a function of its inputs, run by ONNX Runtime."""
    shapes = tuple({0: Dim("batch")} for _ in program.graph_signature.user_inputs)
    onnx: Any = torch.onnx.export(program, dynamo=True, verbose=False, dynamic_shapes=shapes)
    onnx.save(path)
    return onnx  # type: ignore[no-any-return]


def _largest_difference(
    task: nn.Module, exported: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> float:
    """The difference to the task's outputs, relative to the largest; NaN for other shapes."""
    batch = _resized(COMPARED_SIZE, inputs)
    with torch.no_grad():
        expected, outputs = tree_leaves(task(*batch)), tree_leaves(exported(*batch))
    if [value.shape for value in expected] != [value.shape for value in outputs]:
        return math.nan
    differences = [
        (value.double() - right.double()).abs().max() / right.double().abs().max().clamp_min(1e-12)
        for right, value in zip(expected, outputs, strict=True)
    ]
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
