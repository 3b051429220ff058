"""Edits that users make over months."""

import re
import shutil
from pathlib import Path

from baking import LIBRARY

WRITTEN = {
    "README.md": "# Mine\n\nNothing of what stood here.\n",
    "src/my_project/models/wide.py": '''"""One wide layer."""

from torch import nn


def wide(width: int) -> nn.Module:
    """Of images of 32 x 32 pixels, and ten classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 10))
''',
    "configs/model/wide.yaml": """# One wide layer.
_target_: my_project.models.wide.wide
width: 32
""",
    "configs/experiment/mine.yaml": """# @package _global_
# All of these together.
defaults: [{override /model: wide}]
test: false
trainer: {limit_train_batches: 2, max_epochs: 1}
""",
}
DELETED = ["configs/data/cifar10.yaml", "configs/experiment/resnet_cifar10.yaml"]
# What is looked for, and what is written instead; each is there before and after.
CHANGED = {
    "configs/train.yaml": [
        ("seed: 0", "seed: 7"),
        ("progress, model_summary]", "progress, model_summary, early_stopping]"),
    ],
    "configs/trainer/default.yaml": [("max_epochs: 20", "max_epochs: 33")],
    "configs/optimizer/adamw.yaml": [("lr: 1e-3", "lr: 3e-4"), ("decay: 0.01", "decay: 0.05")],
    "pyproject.toml": [('  "numpy>=2.0",', '  "einops>=0.8",\n  "numpy>=2.0",')],
    "constraints.txt": [(r"\nnumpy==[^\n;]*", "\nnumpy==2.4.9")],
    "src/my_project/tasks/classification.py": [
        ("class Classification", 'NOTE = "mine"\n\n\nclass Classification')
    ],
    ".github/workflows/test.yml": [("timeout-minutes: \\d+", "timeout-minutes: 99")],
    "Makefile": [(r"\nlint:", "\nmine: ## my own command\n\t@echo mine\n\nlint:")],
}


def edit(project: Path) -> None:
    """Make them all."""
    for name, text in WRITTEN.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    for name in DELETED:
        (project / name).unlink()
    shutil.move(project / "configs/data/mnist.yaml", project / "configs/data/mnist_of_1998.yaml")
    # As docs/project.md tells those who want to change it.
    (project / "configs/trainer").mkdir()
    shutil.copy(LIBRARY / "src/onecurve/configs/trainer/default.yaml", project / "configs/trainer")
    for name, changes in CHANGED.items():
        text = (project / name).read_text()
        for old, new in changes:
            before, text = text, re.sub(old, new, text, count=1, flags=re.MULTILINE)
            assert text != before, (name, old)
        (project / name).write_text(text)


def lost(project: Path) -> list[str]:
    """The edits that are not there any more."""
    gone = [name for name, text in WRITTEN.items() if (project / name).read_text() != text]
    gone += [name for name in [*DELETED, "configs/data/mnist.yaml"] if (project / name).exists()]
    for name, changes in CHANGED.items():
        text = (project / name).read_text()
        gone += [
            f"{name}: {new}" for _, new in changes if new.strip("\n").split("\n")[0] not in text
        ]
    return gone
