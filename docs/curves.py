"""Train under every strategy, and draw the losses on top of each other: `make face`.

The README's picture, from a sweep of a real project: `python docs/curves.py PROJECT FILE`.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from plots import INK, SETTINGS, adapt

STRATEGIES = ("single", "dp", "ddp", "fsdp", "pipeline", "tensor")
# The first is drawn widest and below; the last as a thin line on top of all.
WIDTHS = (21, 17, 13, 9, 5, 1.2)
SHADES = ("#bccbee", "#f2c073", "#58b894", "#e27d72", "#3b6fd4", "#0d1730")
COMMAND = (
    *("train.py", "-m", f"strategy={','.join(STRATEGIES)}", "trainer.max_epochs=4"),
    *("data.batch_size=128", "logger=csv", "trainer.log_every_n_steps=1", "test=false"),
)


def losses(run: Path) -> list[float]:
    """The training loss of every step."""
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def sweep(project: Path, folder: Path) -> dict[str, list[float]]:
    """The curve of each strategy, from one sweep."""
    typed = [sys.executable, *COMMAND, f"hydra.sweep.dir={folder}"]
    subprocess.run(typed, cwd=project, check=True)
    found = {}
    for run in folder.iterdir():
        if run.is_dir() and (run / "metrics.csv").exists():
            found[run.name.rpartition("strategy=")[2].partition(",")[0]] = losses(run)
    return {strategy: found[strategy] for strategy in STRATEGIES}


def draw(curves: dict[str, list[float]], file: Path) -> None:
    """All of them in one picture, with how far the farthest is from the first."""
    single = curves[STRATEGIES[0]]
    apart = max(
        abs(other - one) / abs(one)
        for curve in curves.values()
        for one, other in zip(single, curve, strict=True)
    )
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
        for (strategy, curve), width, shade in zip(curves.items(), WIDTHS, SHADES, strict=True):
            axes.plot(
                curve, clip_on=False, linewidth=width, color=shade, label=f"strategy={strategy}"
            )
        axes.set_xlabel("step")
        axes.set_ylabel("training loss")
        for line in axes.legend(loc="upper right", ncols=2).get_lines():
            line.set_linewidth(min(6, line.get_linewidth()))
        said = f"{len(curves)} runs, one curve:\nat most {apart:.0e} of the loss apart, in float32"
        axes.text(0.99, 0.38, said, transform=axes.transAxes, ha="right", color=INK)
        figure.savefig(file, transparent=True, metadata={"Date": None})
    adapt(file)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        draw(sweep(Path(sys.argv[1]).resolve(), Path(folder)), Path(sys.argv[2]))
