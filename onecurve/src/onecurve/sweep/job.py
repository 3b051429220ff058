"""One job of a sweep: skipped, gone on with or run, and never in the way of the others."""

import gc
import math
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ..checkpoint.newest import newest_checkpoint
from ..command.check import check
from ..errors import say, user_error_behind
from ..launch import one_run
from ..run import directory, hidden, record
from ..run.context import RunContext
from ..run.outcome import Metrics, RankFailed, in_a_line, was_stopped
from ..run.to_type import typed_here
from . import interrupt, objective, slurm
from .begin import is_search, refuse_nodes
from .curves import read_curves
from .directory import DONE, STOPPED, TRACEBACK, read_record
from .machine_share import is_side_by_side, take_share

# What a trial of a search needs beside the callbacks that were chosen.
PRUNING = {
    "_target_": "onecurve.sweep.search.pruning.Pruning",
    "_recursive_": False,
    "search": "${sweep}",
}


class Failed(Exception):
    """A job did not come to its end. The message is one line."""

    def __init__(self, line: str, refused: bool) -> None:
        super().__init__(line)
        self.refused = refused


def run_job(work: str, config: DictConfig) -> float | None:
    """Do a job of a sweep, unless it is done.

    A failure is recorded in the job's directory, and returned from as if it were none: Hydra would
    end the sweep. Ctrl-C and other signals do end it.

    Args:
        work: Dotted name of what a rank does.
        config: What Hydra composed.

    Returns:
        The last value of ``monitor``; None if there is none.
    """
    hydra = HydraConfig.get()
    sweep_dir, run_dir = Path(hydra.sweep.dir), Path(hydra.runtime.output_dir)
    name = _name(config, hydra, sweep_dir)
    context = slurm.meet(config, hydra)
    members = context.members
    status = members.broadcast("status", lambda: objective.metrics(run_dir).get("status"))
    if status in DONE:
        print(f"{name}: {status} already", flush=True)
    elif not members.broadcast("stopped", (sweep_dir / STOPPED).exists):
        mine = directory.take(run_dir) if members.is_first else nullcontext()
        if not members.broadcast("taken", lambda: mine is not None):
            print(f"{name}: another process is at work on it", flush=True)
            return None
        assert mine is not None
        side_by_side = is_side_by_side(hydra)
        if side_by_side:
            take_share(sweep_dir, int(config.sweep.parallel))
        with mine, interrupt.ends_this_job() if side_by_side else nullcontext():
            what = run_dir.name.partition("-")[2].replace(",", " ")
            print(f"{name}: {what}" if what else name, flush=True)
            _send_below(config, run_dir)
            _with_retries(work, config, context, name)
    return objective.read(run_dir, str(config.get("monitor")), "last")


def _send_below(config: DictConfig, run_dir: Path) -> None:
    """Checkpoints that are sent to an address have a folder there for each job, named as here."""
    # Unresolved, as what comes from the environment is not stored.
    plain: Any = OmegaConf.to_container(config, resolve=False)
    settings = plain.get("checkpoint")
    if isinstance(settings, dict) and (address := settings.get("mirror_to")):
        config.checkpoint.mirror_to = f"{str(address).rstrip('/')}/{run_dir.name}"


def _name(config: DictConfig, hydra: HydraConf, sweep_dir: Path) -> str:
    if is_search(config):
        return f"job {config.sweep.trial + 1} of {config.sweep.trials}"
    jobs = read_record(sweep_dir).get("jobs")
    return f"job {hydra.job.num + 1}" + (f" of {len(jobs)}" if jobs else "")


def _result(run_dir: Path) -> str:
    found = objective.metrics(run_dir)
    words = [f"{key} {found[key]:.4f}" for key in sorted(found) if "/" in key]
    words += [f"{found['seconds']:.1f} s"] if "seconds" in found else []
    words += [f"stopped early by {found['stopped']}"] if "stopped" in found else []
    return "  ".join([str(found["status"]), *words])


def _with_retries(work: str, config: DictConfig, context: RunContext, name: str) -> None:
    run_dir = context.run_dir
    policy = config.sweep.on_failure
    for left in reversed(range(1 + (int(config.sweep.retries) if policy == "retry" else 0))):
        _free_memory()
        try:
            metrics = _once(work, config, context)
        except Failed as failure:
            retries = left > 0 and not failure.refused
            where = typed_here().short(run_dir / TRACEBACK)
            last = " (trying again)" if retries else f" ({where})"
            print(f"{name} failed: {failure}{last}", file=sys.stderr, flush=True)
            if not retries:
                break
        else:
            if not context.members.is_first:
                return
            if wrong := _divergence(metrics, run_dir):
                record.ended_otherwise(run_dir, "diverged", wrong)
                print(f"{name} diverged: {wrong}", file=sys.stderr, flush=True)
            else:
                print(f"{name}: {_result(run_dir)}", flush=True)
            return
    if policy == "stop":
        (run_dir.parent / STOPPED).touch()


def _free_memory() -> None:
    """Let go of the job before in this process, whose trainer and task hold each other."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch and not gc.get_freeze_count():
        # What is left are the libraries above all: they need not be gone through before each job.
        # Once, for the job's own configuration is among it, and what is frozen is never freed.
        gc.freeze()
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _once(work: str, config: DictConfig, context: RunContext) -> Metrics:
    """Run it, from its newest checkpoint if it was cut short before.

    Raises:
        Failed: If it fails; the traceback is in the run's directory.
        SystemExit: If somebody stopped it.
    """
    hydra = HydraConfig.get()
    run_dir, members = context.run_dir, context.members
    (run_dir / TRACEBACK).unlink(missing_ok=True)
    try:
        refuse_nodes(config, slurm.is_queued(hydra))
        line = check(config, str(hydra.job.config_name), hidden.typed(hydra.overrides.task))
        if line and members.is_first:
            say(line)
        found = members.broadcast("newest", lambda: str(newest_checkpoint(run_dir).file or ""))
        if found and "resume" in config:
            print(f"resume: going on from {Path(found).name}", flush=True)
            config.resume = found
        OmegaConf.update(config, "sweep.job", int(hydra.job.num), force_add=True)
        if is_search(config):
            OmegaConf.update(config, "callbacks.pruning", PRUNING, force_add=True)
        with _command_of(hydra):
            return one_run.start(work, config, context)
    except BaseException as error:
        refusal = user_error_behind(error)
        stopped = refusal is None and was_stopped(error)
        line = in_a_line(refusal or error)
        speaks = members.reports_failure()
        if speaks:
            record.unfinished(run_dir, stopped, line)
        if stopped:
            how, status = "stopped by Ctrl-C", 130
            if isinstance(error, RankFailed) and error.status > 128:
                how, status = str(error).partition(";")[0], error.status
            print(f"{how}; the same command goes on with the sweep", file=sys.stderr, flush=True)
            _queue_again(status)
            sys.exit(status)
        if speaks:
            (run_dir / TRACEBACK).write_text(
                f"{refusal}\n" if refusal else "".join(traceback.format_exception(error))
            )
        raise Failed(line, refused=refusal is not None) from None


def _queue_again(status: int) -> None:
    """Where Slurm is about to end the job for its time: what submitit has set up for that.

    Raises:
        SystemExit: Once the job is queued again.
    """
    asks = getattr(signal, "SIGUSR2", None)  # Windows has no such signal, nor Slurm
    if asks is None or status != 128 + asks:
        return
    queue = signal.getsignal(asks)
    if callable(queue):
        queue(asks, None)


@contextmanager
def _command_of(hydra: HydraConf) -> Iterator[None]:
    """The job's record says how to run it alone, whatever process it is in."""
    words = hidden.typed(hydra.overrides.task)
    before, own = sys.argv, [word for word in words if not word.startswith("sweep")]
    sys.argv = [f"{hydra.job.name}.py", *own]
    try:
        yield
    finally:
        sys.argv = before


def _divergence(metrics: Metrics, run_dir: Path) -> str | None:
    """What shows that training came to its end with no number left; None if it did not."""
    for name, value in metrics.items():
        # Another metric may have no value for what it was shown.
        if name.endswith("loss") and not math.isfinite(value):
            curve = read_curves(run_dir, [name])[name]
            first = next((step for step, number in curve if not math.isfinite(number)), None)
            return f"{name} is {value}" + (f" from step {first} on" if first is not None else "")
    return None
