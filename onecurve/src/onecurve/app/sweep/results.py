"""The results of jobs: metrics, curves and objectives, read from their run directories."""

import csv
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import UserError
from ...launch.context import RETURNED
from ..run.record import read_metrics
from .directory import read_record, read_yaml

Curve = list[tuple[int, float]]
"""Step and value of every line of metrics.csv that has the metric, in the order of the file."""

DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
"""What Optuna calls the modes of Lightning."""
LOSS = "train/loss"  # the metric that metrics.csv has for every step
COMPARED_STEPS = 50
"""Of how many steps the losses of strategies are compared: later, rounding has grown too much."""
MOST_POINTS = 500  # points of a curve in a chart: more cannot be told apart, and make a page slow
# Metrics that come first in a table, after the objectives.
PREFERRED = ("val/loss", "val/acc", "test/acc", "test/loss", "train/loss")
OVERRIDES = ".hydra/overrides.yaml"  # a directory is that of a job if it has this file
IGNORED = ("sweep.trial", "resume")  # overrides that say how a job is run, not what it is


class Objective(NamedTuple):
    """A number by which jobs are compared: a metric, or another in metrics.json, as "seconds".

    The mode, "max" or "min", is which way is better; the value is the "last", or the "best" of all
    in metrics.csv.
    """

    name: str
    mode: str
    value: str = "last"

    def reached(self, run_dir: Path) -> float | None:
        """The value that a run reached; None if it has none, or one that is not finite.

        A number that the script returned takes the place of the metric.
        """
        if self.value == "best":
            curve = read_curves(run_dir, [self.name])[self.name]
            if numbers := [number for _, number in curve if math.isfinite(number)]:
                return max(numbers) if self.mode == "max" else min(numbers)
        metrics = read_metrics(run_dir)
        last = metrics.get(RETURNED, metrics.get(self.name))
        return float(last) if isinstance(last, int | float) and math.isfinite(last) else None


def objectives(config: Mapping[str, Any]) -> list[Objective]:
    """The objectives of a search by the configuration of one of its jobs; of a grid, `monitor`."""
    search = config.get("sweep")
    search = search if isinstance(search, Mapping) else {}
    names = search.get("objective") or config.get("monitor") or []
    modes = search.get("direction") or config.get("mode") or "min"
    if isinstance(names, str):
        names, modes = [names], [modes]
    value = str(search.get("value", "last"))
    modes = ["max" if mode == "max" else "min" for mode in modes]
    return [Objective(str(name), mode, value) for name, mode in zip(names, modes, strict=False)]


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
            rows = csv.reader(file)
            head = next(rows, [])
            columns = [(head.index(name), curves[name]) for name in curves if name in head]
            step = head.index("step") if "step" in head else len(head)
            for row in rows:
                for column, curve in columns:
                    try:
                        if row[column]:
                            curve.append((int(row[step]), float(row[column])))
                    except (ValueError, IndexError):
                        break  # a line that a running job has only half written
    except (OSError, csv.Error):
        pass
    return curves


class Job:
    """One job of a sweep, as the files in its directory tell; one that was not begun has none."""

    def __init__(
        self, name: str, directory: Path, overrides: Any, judged: Sequence[Objective]
    ) -> None:
        metrics = read_metrics(directory)
        curves = read_curves(directory, [LOSS, *(each.name for each in judged)])
        self.name = name
        self.directory = directory
        self.overrides = _parse(overrides)
        self.status = str(metrics.get("status", "unknown")) if metrics else "not run"
        # In one line, and empty where there is none: why it failed or diverged, and what ended it
        # before its last epoch.
        self.error, self.stopped = (
            " ".join(str(metrics.get(key) or "").split()) for key in ("error", "stopped")
        )
        self.strategy = str(metrics.get("strategy") or "")
        self.numbers = {  # NaN is possible
            key: float(value)
            for key, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        # The value of each objective; None where there is none that is finite.
        self.values = {each.name: each.reached(directory) for each in judged}
        self.curves = {metric: _thinned(curve) for metric, curve in curves.items()}

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def failed(self) -> bool:
        """Whether something went wrong, of which `error` tells."""
        return self.status in ("failed", "diverged")

    @property
    def complete(self) -> bool:
        """Whether it finished with a value of every objective."""
        return self.finished and bool(self.values) and None not in self.values.values()

    def number(self, name: str) -> float | None:
        """An objective's value, or another number of metrics.json; None if it is not finite."""
        number = self.values[name] if name in self.values else self.numbers.get(name)
        return number if number is not None and math.isfinite(number) else None

    @property
    def seconds_per_step(self) -> float | None:
        """The mean time of a step, with all that the run did beside its steps."""
        seconds, steps = self.number("seconds"), self.number("global_step")
        return seconds / steps if seconds and steps else None


@dataclass(frozen=True)
class SweepResults:
    """One sweep, or several that are reported together."""

    title: str
    commands: list[str]  # what was typed, as far as it is known
    is_search: bool
    objectives: list[Objective]
    jobs: list[Job]  # in the order of their numbers
    keys: list[str]  # override keys whose values differ between jobs

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, the objectives first."""
        found = {name for job in self.jobs for name in job.numbers if "/" in name}
        first = [name for name in PREFERRED if name in found]
        return list(dict.fromkeys([*(o.name for o in self.objectives), *first, *sorted(found)]))

    def costs(self, job: Job) -> list[float]:
        """The values of the objectives that it has, such that less is better."""
        values = [(job.values[each.name], each.mode) for each in self.objectives]
        return [-value if mode == "max" else value for value, mode in values if value is not None]

    @cached_property
    def best(self) -> list[Job]:
        """The best of the finished jobs: one, or of several objectives the Pareto front."""
        complete = {job: self.costs(job) for job in self.jobs if job.complete}
        if len(self.objectives) == 1:
            return [min(complete, key=complete.__getitem__)] if complete else []
        return [
            job
            for job, own in complete.items()
            if not any(
                other != own and all(a <= b for a, b in zip(other, own, strict=True))
                for other in complete.values()
            )
        ]

    @cached_property
    def ranked(self) -> list[Job]:
        """Jobs that finished, best first; then those that did not; last those without a value.

        A job that was stopped early is not compared with those that were not: it would win
        whenever less time or fewer steps are better.
        """

        def rank(job: Job) -> tuple[bool, bool, bool, list[float]]:
            costs = self.costs(job)
            incomplete = not costs or len(costs) < len(self.objectives)
            return (incomplete, not job.finished, job not in self.best, costs)

        return sorted(self.jobs, key=rank)


def read_sweeps(directories: Sequence[Path]) -> SweepResults:
    """Read all jobs of some sweep or run directories; one without a job is rejected."""
    once = list({each.resolve(): each for each in directories}.values())
    sweeps = {directory: _jobs_of(directory) for directory in once}
    # All jobs are compared by the same numbers: those of the first job that names some.
    configs = (read_yaml(path / "config.yaml") for each in sweeps.values() for path in each)
    named = (objectives(config) for config in configs if isinstance(config, dict))
    judged = next(filter(None, named), [])
    jobs: list[Job] = []
    for directory, overrides in sweeps.items():
        for path, lines in overrides.items():
            name = _name_of(path)
            if len(sweeps) > 1:
                name = str(path if path == directory else directory / name)
            jobs.append(Job(name, path, lines, judged))
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    commands = [read_record(directory).get("command") for directory in sweeps]
    return SweepResults(
        title=", ".join(directory.resolve().name for directory in once),
        commands=[str(command) for command in commands if command],
        is_search=any((directory / "study.db").is_file() for directory in sweeps),
        objectives=judged,
        jobs=jobs,
        keys=[key for key in keys if len({job.overrides.get(key, "") for job in jobs}) > 1],
    )


def _jobs_of(directory: Path) -> dict[Path, Any]:
    """The overrides of each job of a sweep by its directory, in the order of their numbers.

    The directory of a job that was not begun does not exist. A run directory is its own only job.
    """
    if not directory.is_dir():
        raise UserError(
            f"{directory}: there is no such directory; give that of a sweep, "
            "for example one of runs/*/*-sweep"
        )
    if (directory / OVERRIDES).is_file():
        return {directory: read_yaml(directory / OVERRIDES)}
    found = {path.parent.parent: read_yaml(path) for path in directory.glob(f"*/{OVERRIDES}")}
    if not found:
        raise UserError(
            f"{directory}: no job in it (none of its directories has {OVERRIDES}); give the "
            "directory of a sweep, for example one of runs/*/*-sweep, or of a run"
        )
    begun = {_name_of(path) for path in found}
    for number, overrides in enumerate(read_record(directory).get("jobs") or [], start=1):
        if str(number) not in begun:
            found[directory / f"{number:02}"] = overrides

    def place(path: Path) -> tuple[int, str]:
        name = _name_of(path)
        return (int(name) if name.isdigit() else 0, name)

    return {path: found[path] for path in sorted(found, key=place)}


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
    found: dict[str, str] = {}
    for line in lines if isinstance(lines, list) else []:
        key, equals, value = str(line).partition("=")
        if key.startswith("hydra.") or key.lstrip("+~") in IGNORED:
            continue
        if not equals:
            value = "removed" if key.startswith("~") else ""
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


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


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, where it is unique; ``optimizer.lr`` becomes ``lr``."""
    ends = {key: key.rpartition(".")[2] for key in keys}
    count = Counter(ends.values())
    return {key: end if end and count[end] == 1 else key for key, end in ends.items()}


def label(overrides: Mapping[str, str], keys: Sequence[str], most: int = 200) -> str:
    """The values of some keys in one line, each of `most` letters at most: ``lr=0.01, seed=1``."""
    names = short_keys(keys)
    return ", ".join(f"{names[key]}={shown(overrides.get(key, ''), most)}" for key in keys)
