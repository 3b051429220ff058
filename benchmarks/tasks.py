"""The tasks that ship, each under every strategy: the largest difference of a loss from `single`.

Each starter is baked anew in build/starters/, and each of its tasks trains in float64, with
everything random that it draws, and validates.

    python benchmarks/tasks.py [STARTER ...]

A cell is the largest relative difference of the per-step `train/loss`, and of what validation logs.
Exit status 1 if a cell is above its limit.
"""

import os
import subprocess
import sys
from pathlib import Path

import baked

LIMIT = 1e-11
TEMPLATE = Path(__file__).resolve().parent.parent
STARTERS = TEMPLATE / "build" / "starters"
SHORT = (
    "trainer.precision=64-true",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=12",
    "trainer.limit_val_batches=3",
    "test=false",
    "callbacks=[]",
    "logger=csv",
)
TASKS = {
    "images": {"classification": ()},
    "segmentation": {
        "segmentation": ("experiment=segmentation",),
        "multi_label": ("experiment=multi_label",),
    },
    "text": {"language_model": ()},
    "huggingface": {
        "causal_lm": (),
        "text_classification": ("experiment=snippets",),
    },
    "diffusion": {"diffusion": ()},
    "tabular": {"regression": ()},
    "bare": {"mine": ()},
}
TWO = "trainer.devices=2"
STRATEGIES = {
    "dp": ("strategy=dp", TWO),
    "ddp": ("strategy=ddp", TWO),
    "fsdp": ("strategy=fsdp", TWO),
    "1f1b": ("strategy=pipeline", TWO),
    "interleaved_1f1b": ("strategy=pipeline", TWO, "strategy.schedule=interleaved_1f1b"),
    "zbv": ("strategy=pipeline", TWO, "strategy.schedule=zbv"),
}


def main(starters: list[str]) -> int:
    """Bake each, and compare its tasks in a process of its own: they have one package name."""
    print(f"{'':28}" + "".join(f"{name:>18}" for name in STRATEGIES), flush=True)
    failed = False
    for name in starters:
        cookiecutter = str(Path(sys.executable).with_name("cookiecutter"))
        bake = [cookiecutter, str(TEMPLATE), "--no-input", "--default-config", f"starter={name}"]
        folder = STARTERS / name
        to = ["--overwrite-if-exists", "--output-dir", str(folder)]
        subprocess.run([*bake, *to], check=True, stdout=subprocess.DEVNULL)
        project = folder / "my-project"
        paths = [str(project / "src"), str(baked.LIBRARY / "src")]
        here = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        child = [sys.executable, __file__, "--compare", name]
        failed |= subprocess.run(child, env=here, check=False).returncode != 0
    return int(failed)


def compare(name: str) -> int:
    """The rows of a starter's tasks."""
    baked.PROJECT = STARTERS / name / "my-project"
    held = True
    with baked.folder_for_runs():
        for task, choice in TASKS[name].items():
            print(f"{name + ': ' + task:28}", end="", flush=True)
            single = baked.train(*choice, *SHORT)
            for strategy in STRATEGIES.values():
                worst = difference(single, baked.train(*choice, *SHORT, *strategy))
                held &= worst <= LIMIT
                print(f"{worst:17.1e}{' ' if worst <= LIMIT else '!'}", end="", flush=True)
            print(flush=True)
    return 0 if held else 1


def difference(single: Path, other: Path) -> float:
    """The largest of what both runs logged."""
    worst = 0.0
    for name in ("train/loss", "val/loss"):
        expected, found = baked.column(single, name), baked.column(other, name)
        assert len(expected) == len(found) > 0, name
        pairs = zip(expected, found, strict=True)
        worst = max(worst, *(abs(a - b) / abs(a) for a, b in pairs))
    return worst


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        sys.exit(compare(sys.argv[2]))
    sys.exit(main(sys.argv[1:] or list(TASKS)))
