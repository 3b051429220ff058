"""Names that a task logs under, read from its source: what is not certain is not refused."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from onecurve.command.monitors import unlogged_monitor

HEAD = """
from lightning.pytorch import Callback, LightningModule
from torch import nn

def helper(task): ...

class Base(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(self(batch), batch)
        self.log("train/loss", loss)
        return loss
"""
# What a task or a callback does, and which names may come of it.
SOURCES: dict[str, tuple[str, list[str], list[str]]] = {
    "literals": (
        "self.log('val/loss', 1); self.log(name='val/acc', value=2); self.log_dict({'val/f1': 3})",
        [
            "val/loss",
            "val/acc",
            "val/f1",
            "train/loss",
            "val/loss_epoch",
            "val/f1/dataloader_idx_1",
        ],
        ["val/los", "val/lossy", "f1"],
    ),
    "an f-string": ("self.log(f'{stage}/loss', 1)", ["val/loss", "x/loss"], ["val/acc"]),
    "nothing": ("isinstance(self, str); hasattr(self, 'x'); self(1)", ["train/loss"], ["val/loss"]),
    "a name of its own": ("self.log(name, 1)", ["any"], []),
    "a sum of texts": ("self.log('val/' + name, 1)", ["any"], []),
    "a collection": ("self.log_dict(self.metrics)", ["any"], []),
    "the method handed on": ("helper(self.log)", ["any"], []),
    "the task handed on": ("helper(self)", ["any"], []),
    "metrics that are set": ("self.trainer.callback_metrics['x'] = 1", ["any"], []),
}


def config(folder: Path, task: str, monitor: str, callback: str = "pass") -> Any:
    """A configuration whose checkpoints wait for a metric, with a task and a callback of files."""
    parts = {
        "Task(Base)": ("validation_step(self, batch, batch_idx)", task),
        "Watcher(Callback)": ("on_train_epoch_end(self, trainer, pl_module)", callback),
    }
    text = HEAD + "".join(
        f"\nclass {name}:\n    def {method}:\n        {body}\n"
        for name, (method, body) in parts.items()
    )
    name = f"watched_{abs(hash(text))}"
    (folder / f"{name}.py").write_text(text)
    return OmegaConf.create(
        {
            "task": {"_target_": f"{name}.Task"},
            "callbacks": {
                "checkpoint": {
                    "_target_": "onecurve.checkpoint.callback.BestAndLast",
                    "monitor": monitor,
                },
                "watcher": {"_target_": f"{name}.Watcher"},
            },
        }
    )


@pytest.fixture(autouse=True)
def _imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


@pytest.mark.parametrize("what", SOURCES)
def test_what_a_task_logs(tmp_path: Path, what: str) -> None:
    body, may, never = SOURCES[what]
    assert [name for name in may if unlogged_monitor(config(tmp_path, body, name))] == []
    assert [name for name in never if not unlogged_monitor(config(tmp_path, body, name))] == []
    assert not any(name.startswith("watched_") for name in sys.modules)


def test_what_a_callback_logs(tmp_path: Path) -> None:
    for body in ("pl_module.log('my/metric', 1)", "self.log('my/metric', 1)", "helper(pl_module)"):
        assert unlogged_monitor(config(tmp_path, "pass", "my/metric", body)) is None, body
    line = unlogged_monitor(config(tmp_path, "self.log('val/a', 1)", "my/metric", "helper(self)"))
    assert line == (
        "monitor=my/metric: nothing logs a metric of that name; this task logs train/loss, val/a; "
        "such as monitor=val/a"
    )


def test_who_waits_for_nothing_is_not_asked(tmp_path: Path) -> None:
    for key, value in {"callbacks": {}, "trainer": {"fast_dev_run": True}, "task": None}.items():
        given = config(tmp_path, "pass", "val/loss")
        given[key] = value
        assert unlogged_monitor(given) is None, key
    assert unlogged_monitor(config(tmp_path, "pass", "lr-AdamW")) is None
