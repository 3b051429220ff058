"""What is exported runs without this project, for any size of batch, with the task's outputs."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli, Refused, one_of_a_kind
from small.task import Classification
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten


class Pair(Classification):
    """Two inputs of different kinds, two outputs."""

    def prepare(self, batch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return batch, batch[1]

    def forward(self, *inputs: Tensor) -> Any:
        images, numbers = inputs
        logits = self.network(images)
        return logits + nn.functional.one_hot(numbers, 10), logits.sum(dim=1)


class Decides(Classification):
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits if logits.sum() > 0 else -logits


class Guesses(Classification):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.rand_like(inputs)


class Says(Classification):
    def prepare(self, batch: Any) -> Any:
        return {"images": batch[0]}, batch[1]


@pytest.mark.compares
@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize("task", one_of_a_kind([Classification, Pair], kept=[Classification]))
def test_what_is_exported_gives_what_the_task_gives(
    warm: Cli, checkpoint_of: Callable[..., Path], kind: str, task: type
) -> None:
    made = checkpoint_of(_target_=f"{task.__module__}.{task.__name__}")
    inputs = [torch.randn(5, 1, 8, 8), *[torch.arange(5)] * (task is Pair)]
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        onnxruntime = pytest.importorskip("onnxruntime")
    outcome = warm("onecurve", "export", f"checkpoint={made}", f"format={kind}", "output=out/net")
    assert "Exported: out/net." in outcome.out
    assert "for a batch of 7 its outputs are the task's to" in outcome.out
    if kind == "torch":
        program = torch.export.load("out/net.pt2")
        outputs = program.module()(*inputs)
        for example, given in zip(program.example_inputs[0], inputs, strict=True):
            assert (example.shape[1:], example.dtype) == (given.shape[1:], given.dtype)
    else:
        session = onnxruntime.InferenceSession("out/net.onnx")
        assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
        named = zip(session.get_inputs(), inputs, strict=True)
        found = session.run(None, {each.name: given.numpy() for each, given in named})
        outputs = [torch.from_numpy(value) for value in found]
    expected = task.load_from_checkpoint(made, weights_only=True).eval()(*inputs)
    found, wanted = (tree_flatten(each)[0] for each in (outputs, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


CANNOT = {
    "Decides": "format=torch: Decides.forward cannot be exported with any size of batch: ",
    "Guesses": "of the largest away from those of Guesses, and may be 1e-04 away",
    "Says": "Says: its network takes something other than tensors with a row for each sample",
}


def test_what_cannot_be_exported_gets_one_line(
    refused: Refused,
    checkpoint_of: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = checkpoint_of()
    line = partial(refused, "onecurve", "export", f"checkpoint={made}", "output=net")
    (tmp_path / "file").touch()
    assert "output=file/net.pt2: File exists; name a place" in line("output=file/net")
    assert "format=onx: must be one of torch, onnx" in line("format=onx")
    for task, words in CANNOT.items():
        checkpoint_of(_target_=f"test_export.{task}")
        assert words in line()
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    words = "onnxscript; type `uv pip install -e '.[onnx]'`, or use format=torch"
    assert words in line("format=onnx")
    assert {path.name for path in tmp_path.iterdir()} == {made.name, "file"}
