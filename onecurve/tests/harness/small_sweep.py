"""Small directories such as the jobs of a sweep leave behind, and what a report makes of them."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import yaml

LOSSES = [2.0, 1.5, 1.2, 1.0]


def make_job(
    sweep: Path,
    number: int,
    *overrides: str,
    losses: list[float] = LOSSES,
    config: dict[str, Any] | None = None,
    **facts: Any,
) -> Path:
    """A directory as a job leaves it; a fact such as val_acc=0.9 is the metric val/acc."""
    run = sweep / f"{number:02d}-job"
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra/overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    judged = {"monitor": "val/acc", "mode": "max"} | (config or {})
    (run / "config.yaml").write_text(yaml.safe_dump(judged))
    metrics = {"val/acc": facts.pop("val_acc")} if "val_acc" in facts else {}
    shown = {"status": "finished", "strategy": "single", "global_step": len(losses)}
    (run / "metrics.json").write_text(
        json.dumps(shown | {"seconds": 2.0, "samples_per_second": 64.0} | metrics | facts)
    )
    lines = ["step,epoch,train/loss,val/acc"]
    lines += [f"{step},{step // 2},{loss}," for step, loss in enumerate(losses)]
    lines += [f"{len(losses) - 1},1,,{value}" for value in metrics.values()]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    return run


def spreadsheet(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def figures(folder: Path) -> dict[str, Any]:
    """The traces of each chart of the page, by its name."""
    page = (folder / "sweep.html").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON to a browser")

    decoder = json.JSONDecoder(parse_constant=refuse)
    drawn = re.finditer(r'Plotly\.newPlot\(\s*"([\w-]+)",\s*', page)
    return {chart[1]: decoder.raw_decode(page, chart.end())[0] for chart in drawn}
