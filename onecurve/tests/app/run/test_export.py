"""What is exported runs without this project, for any size of batch, with the task's outputs."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli, Refused
from small.task import Classification
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

FEW = ("trainer.max_epochs=1", "trainer.limit_train_batches=2")


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


class OfOneSize(Classification):
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits.view(len(inputs.tolist()), 10)


class Guesses(Classification):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.rand_like(inputs)


class Says(Classification):
    def prepare(self, batch: Any) -> Any:
        return {"images": batch[0]}, batch[1]


@pytest.fixture
def checkpoint(trained: Cli, tmp_path: Path) -> Callable[..., Path]:
    """That of a short run, as if it were of another task."""

    def make(task: str = "small.task.Classification", *typed: str) -> Path:
        run = trained(*FEW, *typed).run
        content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
        content["config"]["task"]["_target_"] = task
        torch.save(content, tmp_path / "made.ckpt")
        return tmp_path / "made.ckpt"

    return make


LENET = ("model=lenet", "data.image_size=32")


@pytest.mark.compares
@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("task", "typed"),
    [
        pytest.param(Classification, (), id="mlp"),
        pytest.param(Classification, LENET, id="lenet", marks=pytest.mark.long),
        pytest.param(Pair, (), id="two inputs", marks=pytest.mark.long),
    ],
)
def test_what_is_exported_gives_what_the_task_gives(
    warm: Cli, checkpoint: Callable[..., Path], kind: str, task: type, typed: tuple[str, ...]
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    made = checkpoint(f"{task.__module__}.{task.__name__}", *typed)
    outcome = warm("onecurve", "export", f"checkpoint={made}", f"format={kind}", "output=out/net")
    assert "Exported: out/net." in outcome.out
    assert "for a batch of 7 its outputs are the task's to" in outcome.out
    size = 32 if typed else 8
    inputs = [torch.randn(5, 1, size, size), *[torch.arange(5)] * (task is Pair)]
    if kind == "torch":
        program = torch.export.load("out/net.pt2")
        outputs = program.module()(*inputs)
        for example, given in zip(program.example_inputs[0], inputs, strict=True):
            assert (example.shape[1:], example.dtype) == (given.shape[1:], given.dtype)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession("out/net.onnx")
        assert session.get_inputs()[0].shape == ["batch", 1, size, size]
        given = {each.name: x.numpy() for each, x in zip(session.get_inputs(), inputs, strict=True)}
        outputs = [torch.from_numpy(value) for value in session.run(None, given)]
    expected = task.load_from_checkpoint(made, weights_only=True).eval()(*inputs)
    found, wanted = (tree_flatten(each)[0] for each in (outputs, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


CANNOT = {
    "Decides": "format=torch: Decides.forward cannot be exported with any size of batch: ",
    "OfOneSize": "format=torch: OfOneSize.forward cannot be exported with any size of batch",
    "Guesses": "of the largest away from those of Guesses, and may be 1e-04 away",
    "Says": "Says: its network takes something other than tensors with a row for each sample",
}


def test_what_cannot_be_exported_gets_one_line(
    refused: Refused,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = f"checkpoint={tmp_path}/made.ckpt"
    line = partial(refused, "onecurve", "export", made, "output=net")
    for task, words in CANNOT.items():
        checkpoint(f"test_export.{task}")
        assert words in line()
    checkpoint()
    (tmp_path / "file").touch()
    assert "output=file/net.pt2: File exists; name a place" in line("output=file/net")
    assert "format=onx: must be one of torch, onnx" in line("format=onx")
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    words = "onnxscript; type `uv pip install -e '.[onnx]'`, or use format=torch"
    assert words in line("format=onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"made.ckpt", "file"}
