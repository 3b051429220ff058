"""Draw the tables of benchmarks/RESULTS.md: `python docs/plots.py RESULTS.md FOLDER`.

Each picture follows its table: a row more is a bar more. All are readable on light and dark pages.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

INK, COLOURS = "#333333", ("#3b6fd4", "#e08a2e", "#22916a")
DARK = (
    "<style>@media (prefers-color-scheme: dark) { text, tspan { fill: #ddd !important }"
    f' [style*="fill: {INK}"] {{ fill: #ddd !important }}'
    f' [style*="stroke: {INK}"] {{ stroke: #aaa !important }} }}</style>'
)
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "onecurve",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}
Rows = list[dict[str, str]]


def table(results: str, heading: str) -> Rows:
    """The first table below the line that begins so: a dictionary for each row, by its columns.

    Raises:
        ValueError: No such line.
    """
    _, found, after = results.partition(f"\n{heading}")
    if not found:
        raise ValueError(f"no line begins with {heading!r}")
    lines = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    head, _, *rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in lines[0].splitlines()  # type: ignore[index]
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """The first number of a cell, such as 7.5 of `7.5 steps`."""
    return float(re.search(r"-?\d[\d.,]*(?:e-?\d+)?", cell)[0].replace(",", ""))  # type: ignore[index]


def pipeline_share(axes: Axes, results: str) -> None:
    """A bar for each schedule and number of micro-batches."""
    rows = table(results, "## Two pipeline stages")
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    counts = list(dict.fromkeys(row["micro-batches"] for row in rows))
    values = [
        [number(row["share of it reached"]) for row in rows if row["schedule"] == name]
        for name in names
    ]
    beside(axes, dict(zip(names, values, strict=True)), [f"{c} micro-batches" for c in counts])
    axes.set_ylim(0, 1.2)


def planned(axes: Axes, results: str) -> None:
    """Two bars for each published figure."""
    rows = table(results, "## The planner")
    kinds = ("published", "planned")
    values = {kind: [number(row[kind]) for row in rows] for kind in kinds}
    beside(axes, values, [row["Llama 3"].replace(", ", "\n") for row in rows])
    axes.set_ylabel("tokens per second and GPU")


def beside(axes: Axes, values: dict[str, list[float]], names: list[str]) -> None:
    """Groups of bars, a number above each."""
    width = 0.8 / len(values)
    for place, (label, heights) in enumerate(values.items()):
        left = [i + (place - (len(values) - 1) / 2) * width for i in range(len(heights))]
        bars = axes.bar(left, heights, width * 0.9, color=COLOURS[place], label=label)
        axes.bar_label(bars, padding=2)
    axes.set_xticks(range(len(names)), names)
    axes.legend(loc="upper right", ncols=len(values))


def main(results: str, folder: Path) -> None:
    """Write one picture for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (pipeline_share, planned):
        with plt.rc_context(SETTINGS):
            figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
            draw(axes, results)
            file = folder / f"{draw.__name__}.svg"
            figure.savefig(file, transparent=True, metadata={"Date": None})
            plt.close(figure)
        adapt(file)


def adapt(file: Path) -> None:
    """Make a picture of matplotlib's readable where pages are dark."""
    text = file.read_text(encoding="utf-8")
    clean = "\n".join(line.rstrip() for line in text.splitlines())
    file.write_text(clean.replace("<defs>", f"{DARK}<defs>", 1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"), Path(sys.argv[2]))
