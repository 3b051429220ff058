"""Jobs of a sweep that train nothing: what a run leaves behind, in no time.

How a sweep deals with its jobs shows without a network; that a job trains is for other tests.
"""

from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from onecurve.app import one_run
from onecurve.app.run import record
from onecurve.app.run.stored import STORED
from onecurve.launch.context import RunContext

Metrics = dict[str, float]


class FakeJobs:
    """Takes the place of a run's ranks in each job of the sweeps of a test.

    Args:
        outcome: The metrics of a job by its configuration; it may raise what training would.

    Attributes:
        started: The names of the directories of the jobs that were run, in order.
    """

    def __init__(self, outcome: Callable[[DictConfig], Metrics]) -> None:
        self.outcome = outcome
        self.started: list[str] = []

    def start(self, work: str, config: DictConfig, context: RunContext) -> Metrics:
        run_dir = context.run_dir
        self.started.append(run_dir.name)
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        record.start(run_dir, {**plain, STORED: plain})
        metrics = self.outcome(config)
        # The best value of a metric need not be the last.
        last = {name: value - 1 for name, value in metrics.items()}
        lines = [["step", "epoch", *metrics], [0, 0, *metrics.values()], [1, 0, *last.values()]]
        text = "\n".join(",".join(map(str, line)) for line in lines)
        (run_dir / "metrics.csv").write_text(f"{text}\n")
        record.finished(run_dir, {**last, "strategy": "single", "global_step": 2, "seconds": 1.0})
        return last


@pytest.fixture
def fake_jobs(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    """Jobs whose accuracy is the larger the smaller the learning rate is."""
    jobs = FakeJobs(lambda config: {"val/acc": 1 - float(config.optimizer.lr), "train/loss": 2.0})
    monkeypatch.setattr(one_run, "start", jobs.start)
    return jobs
