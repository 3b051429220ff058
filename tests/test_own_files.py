"""A user adds, deletes and renames files, and the project's own tests still pass."""

import re
import shutil
from pathlib import Path

import pytest
from baking import bake, python_in

ADDED = {
    "configs/callbacks/lines.yaml": """
        # Counts batches.
        lines:
          _target_: my_project.callbacks.lines.Lines
        """,
    "src/my_project/callbacks/lines.py": """
        from lightning.pytorch import Callback

        class Lines(Callback):
            batches = 0

            def on_train_batch_end(self, *arguments: object) -> None:
                self.batches += 1
        """,
    "configs/model/linear.yaml": """
        # One layer.
        _target_: my_project.models.linear.linear
        inputs: 1024
        outputs: ${data.num_classes}
        """,
    "src/my_project/models/linear.py": """
        from torch import nn

        def linear(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))
        """,
    "configs/data/noise.yaml": """
        # Images without a meaning.
        defaults:
          - synthetic
        _target_: my_project.data.noise.Noise
        """,
    "src/my_project/data/noise.py": """
        from .synthetic import Synthetic

        class Noise(Synthetic):
            pass
        """,
    "configs/experiment/mine.yaml": """
        # @package _global_
        # All of these together.
        defaults:
          - override /model: linear
          - override /data: noise
          - override /callbacks: [lines]
        """,
}
DELETED = [
    *("configs/data/cifar10.yaml", "configs/model/resnet.yaml", "src/my_project/models/resnet.py"),
    *("configs/experiment/resnet_cifar10.yaml", "configs/experiment/finetune_resnet.yaml"),
]
RENAMED = {
    "configs/callbacks/ema.yaml": "configs/callbacks/moving_average.yaml",
    "configs/data/mnist.yaml": "configs/data/digits_of_1998.yaml",
}
# Of the tests of configurations, those of what is new; of the others all that could know a name.
NEW = ("lines", "linear", "noise", "mine", "moving_average", "digits_of_1998")


SOME = """
import re, sys
import pytest

class Some:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            print("collected:", item.nodeid)
        items[:] = [item for item in items if re.match("|".join(sys.argv[1:]), item.nodeid)]

sys.exit(pytest.main(["-p", "no:cacheprovider", "-q", "-s", "-ra"], plugins=[Some()]))
"""
"""The tests whose names begin like an argument; all of them are listed."""


def test_what_is_called_shipped_is_there(tmp_path: Path) -> None:
    """A test that asks for a file by a wrong name would be left out for good."""
    project = bake(tmp_path / "out")
    named = set()
    for file in (project / "tests").glob("*.py"):
        text = file.read_text()
        for call in re.findall(r"\bshipped\(([^()]*)\)", text):
            named |= set(re.findall(r'"(\w+/\w+)"', call))
        for line in re.findall(r'^    "(\S.*)": ".*",', text, re.MULTILINE):
            words = [word for word in line.split() if "=" in word and "." not in word]
            named |= {word.replace("=", "/") for word in words if word[0] not in "+~-"}
    assert len(named) > 20
    assert [n for n in named if not (project / "configs" / f"{n}.yaml").exists()] == []


@pytest.mark.long
@pytest.mark.slow
def test_files_of_ones_own_break_no_test(tmp_path: Path) -> None:
    project = bake(tmp_path / "out")
    for name, text in ADDED.items():
        (project / name).write_text(re.sub(r"^ {8}", "", text.strip("\n "), flags=re.M) + "\n")
    for name in DELETED:
        (project / name).unlink()
    for old, new in RENAMED.items():
        shutil.move(project / old, project / new)
    others = r"^tests/test_(models|data|tasks)\.py"
    mistake = r"^tests/test_refusals\.py::test_a_mistake_.*\[data=mnist\]"
    tried = rf"^tests/test_configs\.py::.*({'|'.join(NEW)})"
    shown = python_in(project, "-c", SOME, tried, others, mistake)
    collected = re.findall("^collected: (.*)", shown, re.MULTILINE)
    configs = {line.partition("[")[2] for line in collected if "trains_two_steps" in line}
    assert {"callbacks/lines]", "model/linear]", "data/noise]", "experiment/mine]"} <= configs
    assert not {"data/cifar10]", "model/resnet]", "callbacks/ema]"} & configs
    assert sum(re.match(tried, line) is not None for line in collected) >= len(NEW)
    assert "not in configs/ any more: model/resnet" in shown
    assert "not in configs/ any more: data/mnist" in shown
