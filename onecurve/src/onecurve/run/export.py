"""What one process does to hand a trained network on: a program of torch.export, or ONNX."""

import json
import logging
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

from ..compat.of_torch import tree_leaves
from ..errors import UserError
from . import record
from .building import in_a_line
from .context import RunContext
from .export_files import FILES, numbered, refuse_missing
from .inputs import example_inputs
from .to_type import typed_for
from .trained import trained

TOLERANCE = 1e-4
"""How far outputs may be from the task's, as a part of the largest: kernels round in float32."""
BATCH_SIZES = (1, 7)
"""What is compared; the example that the export sees has another size."""
EXAMPLE_SIZE = 4


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Export the network of a checkpoint with a free batch dimension, and compare what is written.

    Args:
        config: The resolved configuration of `export.py`.
        context: Where the run's record goes; the output's own path is in the configuration.

    Returns:
        The largest difference, by name.

    Raises:
        UserError: If the network cannot be exported, or what is written gives something else.
    """
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    refuse_missing(cfg.format)
    parts = trained(cfg)
    task = parts.task.eval()
    inputs = example_inputs(task, parts.data)
    with _refused(cfg.format, type(task).__name__):
        program = _program(task, of_size(EXAMPLE_SIZE, inputs))
    about = {
        "task": str(parts.config.task._target_),
        "inputs": [
            {"name": name, "shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)[6:]}
            for name, value in zip(numbered("inputs", len(inputs)), inputs, strict=True)
        ],
        "class_names": [str(name) for name in getattr(parts.data, "class_names", None) or ()],
    }
    suffix, save, load = FILES[cfg.format]
    output = Path(cfg.output)
    output = output if output.suffix == suffix else output.with_name(output.name + suffix)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # What is not what it should be never comes to its place.
        with TemporaryDirectory(dir=output.parent) as folder:
            unfinished = Path(folder, output.name)
            with _refused(cfg.format, type(task).__name__):
                save(program, unfinished, json.dumps(about))
                furthest = _compared(task, load(unfinished), inputs)
            if not furthest <= TOLERANCE:
                raise UserError(
                    f"format={cfg.format}: the outputs of what was exported are {furthest:.1e} of "
                    f"the largest away from those of {type(task).__name__}, and may be "
                    f"{TOLERANCE:.0e} away: PyTorch's exporter changes an operation of forward, or "
                    "forward draws at random; try "
                    f"format={'onnx' if cfg.format == 'torch' else 'torch'}"
                )
            # Large weights lie in a file beside it.
            for file in Path(folder).iterdir():
                file.replace(output.with_name(file.name))
    except OSError as error:
        raise UserError(
            f"output={output}: {error.strerror}; name a place that can be written to"
        ) from error
    facts = {"checkpoint": str(cfg.checkpoint), "output": str(output), "furthest": furthest}
    record.finished(run_dir, facts)
    sizes = " and ".join(map(str, BATCH_SIZES))
    print(
        f"Exported: {typed_for(run_dir).short(output)}; for batches of {sizes} its outputs are "
        f"the task's to {furthest:.1e} of the largest (allowed: {TOLERANCE:.0e})"
    )
    return {}


def of_size(size: int, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A batch of so many samples out of those of another, again from the first if need be."""
    rows = torch.arange(size) % len(values[0])
    return tuple(value[rows] for value in values)


def _program(task: torch.nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    batch = Dim("batch")
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for value in inputs:
        shapes[value] = {0: batch}
    with torch.no_grad():
        return torch.export.export(task, inputs, dynamic_shapes=shapes)


def _compared(
    task: torch.nn.Module, exported: Callable[..., list[Tensor]], inputs: tuple[Tensor, ...]
) -> float:
    """How far outputs are from the task's, as a part of the largest; infinite for other shapes."""
    furthest = 0.0
    for size in BATCH_SIZES:
        batch = of_size(size, inputs)
        with torch.no_grad():
            expected, given = tree_leaves(task(*batch)), exported(*batch)
        if [value.shape for value in expected] != [value.shape for value in given]:
            return float("inf")
        for right, value in zip(expected, given, strict=True):
            distance = (value.double() - right.double()).abs().max()
            relative = (distance / right.double().abs().max().clamp_min(1e-12)).item()
            # What is no number is far away, too.
            furthest = max(furthest, relative) if relative == relative else float("inf")
    return furthest


@contextmanager
def _refused(kind: str, task: str) -> Iterator[None]:
    """Say in one line what PyTorch's exporters say on pages."""
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
            f"{in_a_line(error)}"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
