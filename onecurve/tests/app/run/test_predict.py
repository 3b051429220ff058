"""From a checkpoint to tables and tensors, and to what runs without this project."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ALL, FLOAT64, ROUNDING, Cli, Refused
from lightning.pytorch import LightningDataModule, LightningModule
from small.digits import Digits
from small.task import Classification
from torch import Tensor
from torch.utils._pytree import tree_flatten

from onecurve.app.run.notebook import load, predicted
from onecurve.errors import UserError


def rows_of(run: Path) -> Any:
    """The numbers of a table (N, C), with those of the samples before them."""
    return np.loadtxt(run / "predictions.csv", delimiter=",", skiprows=1)


@pytest.mark.compares
@pytest.mark.parametrize("strategy", ["dp", "pipeline"])
def test_every_strategy_predicts_the_rows_of_one_process(
    checkpoint_of: Callable[..., Path], warm: Cli, strategy: str
) -> None:
    """105 samples in batches of 13: the last has one, and two ranks join it to that before."""
    checkpoint = f"checkpoint={checkpoint_of()}"
    typed = ("predict.py", checkpoint, "callbacks=[]", FLOAT64, "data.batch_size=13")
    expected = rows_of(warm(*typed).run)
    assert expected.shape == (105, 11)
    assert np.abs(rows_of(warm(*typed, *ALL[strategy]).run) - expected).max() <= ROUNDING


class Returns(Classification):
    """What a task may return of a batch."""

    def __init__(self, *args: Any, kind: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.kind = kind

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        shares: Tensor = self(batch[0]).softmax(dim=-1)
        best = shares.argmax(dim=1)
        made = {
            "columns": {"share": shares.max(dim=1).values, "digit": best},
            "texts": [f"a {number}" for number in best.tolist()],
            "tensors": (shares, {"inputs": batch[0]}),
            "ragged": torch.ones(len(best), batch_idx + 1),
        }
        return made.get(self.kind)


class Speaks(Returns):
    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        drawn = torch.rand(()).item()
        state = f"{self.training} {torch.is_grad_enabled()} {type(data_module).__name__} {drawn}"
        (run_dir / "spoken.txt").write_text(f"{options['prompt']}: {state}")


class WithoutStep(Classification):
    predict_step = LightningModule.predict_step


class Tested(Digits):
    """Only a test set, and that only for a test."""

    predict_dataloader = LightningDataModule.predict_dataloader

    def setup(self, stage: str) -> None:
        assert stage == "test"
        super().setup(stage)


class TestedTwice(Tested):
    def test_dataloader(self) -> Any:
        return [self._loader(part) for part in (1, 2)]


FEW = ("callbacks=[]", "data.batch_size=5", "trainer.limit_predict_batches=3")
# The head of a table and its first row, else the sizes of tensors.
OF: dict[str, Any] = {
    "columns": "sample,share,digit\n0,",
    "texts": "sample,prediction\n0,a ",
    "tensors": [(15, 10), (15, 1, 8, 8)],
    "ragged": [(1,)] * 5 + [(2,)] * 5 + [(3,)] * 5,
}


@pytest.mark.parametrize("kind", OF)
def test_what_a_task_returns_decides_on_the_file(
    warm: Cli, checkpoint_of: Callable[..., Path], kind: str, tmp_path: Path
) -> None:
    made = checkpoint_of(_target_="test_predict.Returns", kind=kind)
    outcome = warm("predict.py", f"checkpoint={made}", *FEW)
    name = "predictions.csv" if isinstance(OF[kind], str) else "predictions.pt"
    file = outcome.run / name
    assert f"15 predictions: {file.relative_to(tmp_path)}" in outcome.out.splitlines()
    if isinstance(OF[kind], str):
        assert file.read_text().startswith(OF[kind])
        samples = [line.partition(",")[0] for line in file.read_text().splitlines()]
        assert samples == ["sample", *map(str, range(15))]
    else:
        found, _ = tree_flatten(torch.load(file, weights_only=True))
        assert [tuple(each.shape) for each in found] == OF[kind]


def test_a_task_that_says_nothing_gives_what_its_network_does(
    warm: Cli, checkpoint_of: Callable[..., Path]
) -> None:
    """And data without a loader for prediction those of the test; each of several gets a file."""
    made = checkpoint_of("test_predict.Tested", _target_="test_predict.WithoutStep")
    outcome = warm("predict.py", f"checkpoint={made}", "callbacks=[]")
    assert "Tested has no predict_dataloader: these are the samples of its test" in outcome.out
    rows = rows_of(outcome.run)
    assert rows.shape == (105, 11)
    assert not np.allclose(rows[:, 1:].sum(axis=1), 1)
    made = checkpoint_of("test_predict.TestedTwice", _target_="test_predict.WithoutStep")
    warm("predict.py", f"checkpoint={made}", "callbacks=[]", "predict.output=out/of.csv")
    lines = [Path(f"out/of-{loader}.csv").read_text().count("\n") for loader in (0, 1)]
    assert lines == [1 + 72, 1 + 105]


class Files(Digits):
    predicted_files = tuple(f"folder/{number}.png" for number in range(105))


def test_samples_that_are_files_are_named(warm: Cli, checkpoint_of: Callable[..., Path]) -> None:
    made = checkpoint_of("test_predict.Files")
    outcome = warm("predict.py", f"checkpoint={made}", "callbacks=[]")
    lines = (outcome.run / "predictions.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["file", *Files.predicted_files]


def test_a_task_may_do_it_all_by_itself(
    cli: Cli, warm: Cli, checkpoint_of: Callable[..., Path]
) -> None:
    made = checkpoint_of(_target_="test_predict.Speaks")
    typed = (f"checkpoint={made}", "+predict.prompt=hello", FLOAT64)
    runs = [cli("predict.py", *typed).run, warm("predict.py", *typed, "strategy=ddp").run]
    said = [(run / "spoken.txt").read_text() for run in runs]
    assert said[0].startswith("hello: False False Digits 0.")
    assert len(said[0]) > 40, "drawn in float64"
    assert said[0] == said[1]


def test_a_notebook_gets_what_the_command_predicts(
    warm: Cli, checkpoint_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # which a command takes back
    made = checkpoint_of()
    outcome = warm("predict.py", f"checkpoint={made}", "callbacks=[]")
    there = torch.from_numpy(rows_of(outcome.run)[:, 1:])
    task, data, _ = load(made, batch_size=100)
    torch.testing.assert_close(predicted(task, data).double(), there, rtol=1e-5, atol=1e-7)
    assert not task.training
    with pytest.raises(UserError, match="is not a complete checkpoint"):
        load(outcome.run / "metrics.json")


def test_what_cannot_be_predicted_gets_one_line(
    cli: Cli, refused: Refused, checkpoint_of: Callable[..., Path], tmp_path: Path
) -> None:
    made = checkpoint_of(_target_="test_predict.Returns", kind="nothing")
    # Lightning warns of it before, once in a process.
    said = cli("predict.py", f"checkpoint={made}", *FEW).err.splitlines()[-1]
    assert "Returns.predict_step: returned nothing" in said
    for gone in ({"_target_": "test_predict.Gone"}, {"data": "test_predict.Gone"}):
        line = refused("predict.py", f"checkpoint={checkpoint_of(**gone)}", *FEW)
        assert "there is no Gone in test_predict" in line
    (tmp_path / "file").touch()
    there = "predict.output=file/there"
    line = refused("predict.py", f"checkpoint={checkpoint_of()}", *FEW, there)
    assert f"{there}: File exists; name a place" in line
    other = torch.load(made, weights_only=True)
    del other["state_dict"]["network.output.bias"]
    torch.save(other, made)
    for script in ("predict.py", "evaluate.py"):
        words = "is of another network: network.output.bias is not in the checkpoint"
        assert words in refused(script, f"checkpoint={made}")


# Export: for any size of batch, with the task's outputs


class Decides(Classification):
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits if logits.sum() > 0 else -logits


class Says(Classification):
    def prepare(self, batch: Any) -> Any:
        return {"images": batch[0]}, batch[1]


@pytest.mark.compares
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_what_is_exported_gives_what_the_task_gives(
    warm: Cli, checkpoint_of: Callable[..., Path], kind: str
) -> None:
    made, inputs = checkpoint_of(), torch.randn(5, 1, 8, 8)
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        onnxruntime = pytest.importorskip("onnxruntime")
    outcome = warm("onecurve", "export", f"checkpoint={made}", f"format={kind}", "output=out/net")
    assert "Exported: out/net." in outcome.out
    assert "for a batch of 7 its outputs are the task's to" in outcome.out
    if kind == "torch":
        found = torch.export.load("out/net.pt2").module()(inputs)
    else:
        session = onnxruntime.InferenceSession("out/net.onnx")
        (named,) = session.get_inputs()
        assert named.shape == ["batch", 1, 8, 8]
        (outputs,) = session.run(None, {named.name: inputs.numpy()})
        found = torch.from_numpy(outputs)
    expected = Classification.load_from_checkpoint(made, weights_only=True).eval()(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


CANNOT = {
    "Decides": "format=torch: Decides.forward cannot be exported with any size of batch: ",
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
        checkpoint_of(_target_=f"test_predict.{task}")
        assert words in line()
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    words = "onnxscript; type `uv pip install -e '.[onnx]'`, or use format=torch"
    assert words in line("format=onnx")
    assert {path.name for path in tmp_path.iterdir()} == {made.name, "file"}
