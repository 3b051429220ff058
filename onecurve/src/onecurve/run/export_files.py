"""The files of an exported network: how each kind is written, and run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from ..compat.of_torch import tree_leaves
from ..errors import UserError
from ..extras import missing

ONNX = ("onnx", "onnxscript", "onnxruntime")
ABOUT = "onecurve.json"
"""Under this name both kinds keep what is said of them."""


class File(NamedTuple):
    """One kind of file."""

    suffix: str
    save: Callable[[ExportedProgram, Path, str], None]
    """Write a program, and what is said of it, in JSON."""
    load: Callable[[Path], Callable[..., list[Tensor]]]
    """Read it as a function of inputs (N, ...)."""


def refuse_missing(kind: str) -> None:
    """Refuse what an extra brings that is not installed.

    Raises:
        UserError: With what to type.
    """
    if kind == "onnx" and (refusal := missing("format=onnx", ONNX, "onnx", "format=torch")):
        raise UserError(refusal)


def _save_torch(program: ExportedProgram, path: Path, about: str) -> None:
    torch.export.save(program, path, extra_files={ABOUT: about})


def _load_torch(path: Path) -> Callable[..., list[Tensor]]:
    module = torch.export.load(path).module()
    return lambda *inputs: tree_leaves(module(*inputs))


def _save_onnx(program: ExportedProgram, path: Path, about: str) -> None:
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
    onnx.model.metadata_props[ABOUT] = about
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
    """How inputs or outputs are called: "inputs", or "inputs_0", "inputs_1", ..."""
    return [what] if count == 1 else [f"{what}_{number}" for number in range(count)]


FILES = {
    "torch": File(".pt2", _save_torch, _load_torch),
    "onnx": File(".onnx", _save_onnx, _load_onnx),
}
