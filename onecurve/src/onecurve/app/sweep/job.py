"""One job of a sweep: skipped if it is done, resumed or run, and its failure recorded."""

import gc
import math
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ...checkpoint.file import newest_checkpoint
from ...checkpoint.remote import DIRPATH, bring_last, folder_of, is_address
from ...compat.patches import replaced
from ...errors import in_digits, say, user_error_behind
from ...launch.context import (
    Metrics,
    RankFailed,
    RunContext,
    describe_failure,
    diverged,
    was_stopped,
)
from .. import one_run
from ..command.check import check
from ..command.job import resolve_files
from ..metric_names import is_metric
from ..run import record
from ..run.record import invocation, read_metrics
from ..run.stored import overrides_of
from .directory import DONE, STOPPED, TRACEBACK, read_record
from .launchers import (
    JOBLIB,
    interrupt_ends_job,
    launcher_of,
    reject_several_nodes,
    take_share,
)
from .results import Objective, read_curves

# Added to the callbacks of every trial of a search.
PRUNING = {
    "_target_": "onecurve.app.sweep.search.Pruning",
    "_recursive_": False,
    "search": "${sweep}",
}


def is_search(config: DictConfig) -> bool:
    """Whether trials are chosen as the sweep proceeds: sweep=optuna."""
    return "trials" in config.get("sweep", {})


def run_job(work: str, config: DictConfig) -> float | None:
    """Run a job of a sweep, unless it is done.

    A failure is recorded in the job's directory and not raised, which would end Hydra's sweep.
    Ctrl-C and other signals do end it. Returned is the last value of ``monitor``, if there is one.
    """
    resolve_files(config)
    hydra = HydraConfig.get()
    sweep_dir, run_dir = Path(hydra.sweep.dir), Path(hydra.runtime.output_dir)
    total = (
        config.sweep.trials if is_search(config) else len(read_record(sweep_dir).get("jobs") or ())
    )
    name = f"job {hydra.job.num + 1}" + (f" of {total}" if total else "")
    with ExitStack() as stack:
        if (status := read_metrics(run_dir).get("status")) in DONE:
            print(f"{name}: {status} already", flush=True)
        elif not (sweep_dir / STOPPED).exists():
            if (lock := record.lock_run(run_dir)) is None:
                print(f"{name}: another process is at work on it", flush=True)
                return None
            stack.callback(lock.release)
            if launcher_of(hydra) == JOBLIB:
                take_share(sweep_dir, int(config.sweep.parallel))
                stack.enter_context(interrupt_ends_job())
            varied = run_dir.name.partition("-")[2].replace(",", " ")
            print(f"{name}: {varied}" if varied else name, flush=True)
            started = time.monotonic()
            _run_and_report(work, config, run_dir, name)
            _print_what_is_left(config, total, time.monotonic() - started)
    return Objective(str(config.get("monitor"))).reached(run_dir)


def _print_what_is_left(config: DictConfig, total: int, seconds: float) -> None:
    """How many jobs have not ended, and about how long they take: each as long as this one."""
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    jobs = [read_metrics(path.parent) for path in sweep_dir.glob("*/metrics.json")]
    left = total - sum(job.get("status") != "running" for job in jobs)
    if left > 0 and not (sweep_dir / STOPPED).exists():
        rounds = math.ceil(left / int(config.sweep.get("parallel") or 1))
        after = timedelta(seconds=round(rounds * seconds))
        print(f"jobs left: {left} of {total}, about {after}", flush=True)


def _run_and_report(work: str, config: DictConfig, run_dir: Path, name: str) -> None:
    _free_memory()
    (run_dir / TRACEBACK).unlink(missing_ok=True)
    try:
        metrics = _run(work, config, run_dir)
    except BaseException as error:
        refusal = user_error_behind(error)
        stopped = refusal is None and was_stopped(error)
        line = describe_failure(refusal or error)
        record.unfinished(run_dir, stopped, line)
        if stopped:
            _end_process(error)
        text = f"{refusal}\n" if refusal else "".join(traceback.format_exception(error))
        (run_dir / TRACEBACK).write_text(text)
        file = invocation().short(run_dir / TRACEBACK)
        print(f"{name} failed: {line} ({file})", file=sys.stderr, flush=True)
        if config.sweep.on_failure == "stop":
            (run_dir.parent / STOPPED).touch()
        return
    if reason := _divergence(metrics, run_dir):
        record.change_status(run_dir, "diverged", reason)
        print(f"{name} diverged: {reason}", file=sys.stderr, flush=True)
    else:
        print(f"{name}: {_summary(run_dir)}", flush=True)


def _free_memory() -> None:
    """Free the trainer and the task of the previous job, which refer to each other."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch and not gc.get_freeze_count():
        # What is left are mostly the libraries: exclude them from the collections before later
        # jobs. Only once, as the job's configuration is frozen with them, and never freed.
        gc.freeze()
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _run(work: str, config: DictConfig, run_dir: Path) -> Metrics:
    """Run a job, from its newest checkpoint if it was interrupted before."""
    hydra = HydraConfig.get()
    overrides = overrides_of(hydra.overrides.task)
    reject_several_nodes(config)
    _write_to_own_folder(config, run_dir)
    if line := check(config, str(hydra.job.config_name), overrides):
        say(line)
    if address := folder_of(config):
        bring_last(DIRPATH, address, run_dir)
    newest = newest_checkpoint(run_dir)[0]
    if newest and "resume" in config:
        print(f"resume: continuing from {newest.name}", flush=True)
        config.resume = str(newest)
    OmegaConf.update(config, "sweep.job", int(hydra.job.num), force_add=True)
    if is_search(config):
        OmegaConf.update(config, "callbacks.pruning", PRUNING, force_add=True)
    of_a_run = [word for word in overrides if not word.startswith("sweep")]
    # The job's record names the command that runs the job alone.
    with replaced(sys, "argv", [f"{hydra.job.name}.py", *of_a_run]):
        return one_run.start(work, config, RunContext(run_dir))


def _write_to_own_folder(config: DictConfig, run_dir: Path) -> None:
    """Give checkpoints that a job writes to an address a folder there, as on a disk."""
    # Unresolved, so that the text is stored and not what an environment variable holds.
    plain: Any = OmegaConf.to_container(config, resolve=False)
    for name, entry in (plain.get("callbacks") or {}).items():
        if entry and is_address(folder := entry.get("dirpath")):
            config.callbacks[name].dirpath = f"{folder.rstrip('/')}/{run_dir.name}"


def _end_process(error: BaseException) -> NoReturn:
    """End the sweep, of which a signal has stopped a job."""
    reason, status = "stopped by Ctrl-C", 130
    if isinstance(error, RankFailed) and error.status > 128:
        reason, status = str(error).partition(";")[0], error.status
    print(f"{reason}; the same command resumes the sweep", file=sys.stderr, flush=True)
    usr2 = getattr(signal, "SIGUSR2", None)  # not on Windows, which has no Slurm either
    if usr2 is not None and status == 128 + usr2:
        # Slurm ends the job for its time limit: submitit's handler queues it again.
        handler = signal.getsignal(usr2)
        if callable(handler):
            handler(usr2, None)
    sys.exit(status)


def _divergence(metrics: Metrics, run_dir: Path) -> str | None:
    """Which final loss is not finite, and from which step on; None if all are."""
    if (name := diverged(metrics)) is None:
        return None
    curve = read_curves(run_dir, [name])[name]
    first = next((step for step, number in curve if not math.isfinite(number)), None)
    return f"{name} is {metrics[name]}" + (f" from step {first} on" if first is not None else "")


def _summary(run_dir: Path) -> str:
    metrics = read_metrics(run_dir)
    words = [f"{key} {in_digits(metrics[key])}" for key in sorted(metrics) if is_metric(key)]
    words += [f"{metrics['seconds']:.1f} s"] if "seconds" in metrics else []
    words += [f"stopped early by {metrics['stopped']}"] if "stopped" in metrics else []
    return "  ".join([str(metrics["status"]), *words])
