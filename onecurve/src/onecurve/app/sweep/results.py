"""The results of jobs: metrics, curves and the objective, read from their run directories."""

import csv
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import UserError
from ...launch.context import RETURNED
from ..metric_names import is_metric
from ..run.record import OVERRIDES, read_metrics
from .directory import read_record, read_yaml

Curve = list[tuple[int, float]]
"""Step and value of every line of metrics.csv that has the metric, in the order of the file."""

DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
"""What Optuna calls the modes of Lightning."""
# What the loss of each training step is called: by the first of these that has a curve.
LOSSES = ("train/loss", "train_loss", "train_loss_step", "loss")
COMPARED_STEPS = 50
"""Of how many steps the losses of strategies are compared: later, rounding has grown too much."""
MOST_POINTS = 500  # points of a curve in a chart: more cannot be told apart, and make a page slow
IGNORED = ("sweep.trial", "resume")  # overrides that say how a job is run, not what it is


class Objective(NamedTuple):
    """The number by which jobs are compared: a metric, or another in metrics.json, as "seconds".

    The mode, "max" or "min", is which way is better.
    """

    name: str
    mode: str = "min"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Objective":
        """That of a search by the configuration of one of its jobs; of a grid, `monitor`."""
        search = config.get("sweep") or {}
        name = search.get("objective") or config.get("monitor") or ""
        mode = search.get("direction") or config.get("mode")
        return cls(str(name), "max" if mode == "max" else "min")

    def reached(self, run_dir: Path) -> float | None:
        """The value that a run reached; None if it has none, or one that is not finite.

        A number that the script returned takes the place of the metric.
        """
        metrics = read_metrics(run_dir)
        last = metrics.get(RETURNED, metrics.get(self.name))
        return float(last) if isinstance(last, int | float) and math.isfinite(last) else None


def validate_objective(name: str, known: list[str]) -> None:
    """Reject an objective that is not among the numbers of a run, and name the closest."""
    if name in known:
        return
    close = get_close_matches(name, known, 3, cutoff=0.5) or [key for key in known if "/" in key]
    raise UserError(
        f"sweep.objective={name}: nothing logs a metric of that name; nearest are "
        f"{', '.join(close)}, such as sweep.objective={close[0] if close else 'val/loss'}"
    )


def read_curves(run_dir: Path, names: Collection[str]) -> dict[str, Curve]:
    """The curves of some metrics, by name; that of a metric which was not logged is empty."""
    curves: dict[str, Curve] = {name: [] for name in names}
    try:
        with (run_dir / "metrics.csv").open(newline="", errors="replace") as file:
            for row in csv.DictReader(file):
                for name in filter(row.get, curves):
                    curves[name].append((int(row["step"]), float(row[name])))
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        pass  # there is no file, or a running job has written only half of the last line
    return curves


@dataclass(frozen=True, eq=False)
class Job:
    """One job of a sweep, as the files in its directory tell; one that was not begun has none."""

    name: str
    directory: Path
    overrides: dict[str, str]
    metrics: dict[str, Any]  # metrics.json
    value: float | None  # of the objective; None where there is none that is finite
    curves: dict[str, Curve]

    @property
    def status(self) -> str:
        return str(self.metrics.get("status", "unknown")) if self.metrics else "not run"

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def failed(self) -> bool:
        """Whether something went wrong, of which the text "error" tells."""
        return self.status in ("failed", "diverged")

    @property
    def complete(self) -> bool:
        """Whether it finished with a value of the objective."""
        return self.finished and self.value is not None

    def text(self, name: str) -> str:
        """One of the texts in metrics.json, in one line; empty where there is none."""
        return " ".join(str(self.metrics.get(name) or "").split())

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The numbers in metrics.json; NaN is possible."""
        return {
            key: float(value)
            for key, value in self.metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


@dataclass(frozen=True)
class SweepResults:
    """The jobs of a sweep, or a single run."""

    title: str
    command: str  # what was typed; empty if it is not known
    objective: Objective  # without a name if jobs have none
    jobs: list[Job]  # in the order of their numbers
    keys: list[str]  # override keys whose values differ between jobs
    loss: str  # the metric that is the loss of each training step

    @cached_property
    def metrics(self) -> list[str]:
        """Names of all metrics, the objective first."""
        numbers = {name for job in self.jobs for name in job.numbers}
        # Those of validation come first after it.
        names = sorted(filter(is_metric, numbers), reverse=True)
        return list(filter(None, dict.fromkeys([self.objective.name, *names])))

    def number(self, job: Job, name: str) -> float | None:
        """The value of the objective, or another number of a job; NaN is possible."""
        reached = job.value if name == self.objective.name else None
        return job.numbers.get(name) if reached is None else reached

    def has(self, name: str) -> bool:
        """Whether a job has this number, or this value of the objective."""
        return any(self.number(job, name) is not None for job in self.jobs)

    def cost(self, job: Job) -> float:
        """The value of the objective, such that less is better; infinite without one."""
        if job.value is None:
            return math.inf
        return -job.value if self.objective.mode == "max" else job.value

    @cached_property
    def best(self) -> Job | None:
        """The best of the finished jobs, if one has a value of the objective."""
        return next((job for job in self.ranked if job.complete), None)

    @cached_property
    def ranked(self) -> list[Job]:
        """Jobs that finished, best first; then those that did not; last those without a value.

        A job that was stopped early is not compared with those that were not: it would win
        whenever less time or fewer steps are better.
        """
        return sorted(
            self.jobs, key=lambda job: (job.value is None, not job.finished, self.cost(job))
        )


def read_sweep(directory: Path) -> SweepResults:
    """Read all jobs of a sweep, or a run directory as its only job; one without is rejected."""
    typed = _jobs_of(directory)
    # All jobs are compared by the same number: that of the first job that names one.
    configs = (read_yaml(path / "config.yaml") for path in typed)
    judged = (Objective.of(config) for config in configs if isinstance(config, dict))
    objective = next((one for one in judged if one.name), Objective(""))
    jobs = []
    for path, lines in typed.items():
        curves = read_curves(path, [*LOSSES, objective.name])
        thinned = {metric: _thinned(curve) for metric, curve in curves.items()}
        metrics, value = read_metrics(path), objective.reached(path)
        jobs.append(Job(_name_of(path), path, _parse(lines), metrics, value, thinned))
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    varied = [key for key in keys if len({job.overrides.get(key, "") for job in jobs}) > 1]
    command = str(read_record(directory).get("command") or "")
    loss = next((name for name in LOSSES if any(job.curves[name] for job in jobs)), LOSSES[0])
    return SweepResults(directory.resolve().name, command, objective, jobs, varied, loss)


def _jobs_of(directory: Path) -> dict[Path, Any]:
    """The overrides of each job of a sweep by its directory, in the order of their numbers.

    The directory of a job that was not begun does not exist.
    """
    if (directory / OVERRIDES).is_file():
        return {directory: read_yaml(directory / OVERRIDES)}
    jobs = {path.parent.parent: read_yaml(path) for path in directory.glob(f"*/{OVERRIDES}")}
    if not jobs:
        why = "no job in it" if directory.is_dir() else "there is no such directory"
        raise UserError(
            f"{directory}: {why}; give the directory of a sweep, such as one of runs/*/*-sweep, "
            f"or of a run, which has a file {OVERRIDES}"
        )
    begun = {_name_of(path) for path in jobs}
    for number, overrides in enumerate(read_record(directory).get("jobs") or [], start=1):
        if str(number) not in begun:
            jobs[directory / f"{number:02}"] = overrides
    return dict(sorted(jobs.items(), key=lambda item: (len(_name_of(item[0])), item[0].name)))


def _name_of(job: Path) -> str:
    """The number that the name of a job's directory begins with; the whole name without one."""
    match = re.match(r"(\d{1,9})(-|$)", job.name)
    return str(int(match[1])) if match else job.name


def _thinned(curve: Curve) -> Curve:
    """All of the first points, which are compared, and evenly spaced ones of the others."""
    # A run that was resumed logs the steps since its checkpoint again: the later value counts.
    points = sorted(dict(curve).items())
    every = math.ceil(len(points) / MOST_POINTS) or 1
    return points[:COMPARED_STEPS] + points[COMPARED_STEPS::every]


def _parse(lines: Any) -> dict[str, str]:
    """Overrides by key: ``+callbacks=ema`` and ``~callbacks.ema`` keep their sign."""
    overrides: dict[str, str] = {}
    for line in lines if isinstance(lines, list) else []:
        key, equals, value = str(line).partition("=")
        if key.startswith("hydra.") or key.lstrip("+~") in IGNORED:
            continue
        if not equals:
            value = "removed" if key.startswith("~") else ""
        overrides[key] = f"{overrides[key]}, {value}" if key in overrides else value
    return overrides


def as_number(text: str) -> float | None:
    """The finite number that a value is, if it is one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def shown(text: str, most: int = 200) -> str:
    """A value for a reader: long numbers are rounded, other texts truncated."""
    number = as_number(text)
    if number is not None and len(text) > 8 and not text.lstrip("-").isdigit():
        return f"{number:.3g}"
    # Empty where a job lacks an override that others have.
    text = text or "default"
    return text if len(text) <= most else text[: most - 1] + "…"


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Each key's last part, where it is unique; ``optimizer.lr`` becomes ``lr``."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    count = Counter(ends.values())
    return {key: end if end and count[end] == 1 else key for key, end in ends.items()}


def label(overrides: Mapping[str, str], keys: Collection[str]) -> str:
    """The values of some keys in one line: ``lr=0.01, seed=1``."""
    names = short_keys(keys)
    return ", ".join(f"{names[key]}={shown(overrides.get(key, ''))}" for key in keys)
