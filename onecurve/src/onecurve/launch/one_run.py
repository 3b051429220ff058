"""One run from its composed configuration to its end: the record, and the ranks."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from .. import machine
from ..errors import UserError, interrupted, say
from ..run import directory, hidden, record, restart
from ..run.outcome import Metrics, RankFailed
from ..run.restart import Attempt
from . import again, attempts, rendezvous, stored
from .forkserver import warm_up
from .launch import launch
from .logs import Verbose


def start(work: str, config: DictConfig, run_dir: Path) -> Metrics:
    """Start the ranks of a run and wait for its end.

    Args:
        work: Dotted name of what a rank does, as `launch` takes it.
        config: What Hydra composed.
        run_dir: Where the run leaves its files.

    Raises:
        RankFailed, UserError: As `launch`.
    """
    left = int(OmegaConf.select(config, "launch.max_restarts") or 0)
    while True:
        try:
            return _start(work, config, run_dir)
        except rendezvous.HostGone as gone:
            if left == 0:
                raise
            left -= 1
            where, _, _ = str(gone).partition(";")
        say(f"{where}; waiting {config.launch.timeout_seconds:g} s for it to come back")
        _meet_again(run_dir)


def _meet_again(run_dir: Path) -> None:
    try:
        rendezvous.meet_again()
        # The first of them may be another now.
        rendezvous.first_says("directory", lambda: directory.hold(run_dir, f"resume={run_dir}"))
    except UserError as error:
        # Not as a refusal, which would take a run for one that has not begun.
        raise RankFailed(str(error)) from None


def _start(work: str, config: DictConfig, run_dir: Path) -> Metrics:
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if instead := hidden.stored_as(config):
        plain[hidden.STORED_AS] = instead
        _hide_what_was_typed(run_dir, hidden.secrets(plain))
    processes = _processes(config)
    if processes > 1 or (rendezvous.current is not None and machine.ranks_around() is None):
        warm_up()
    if rendezvous.writes_record():
        record.start(run_dir, plain)
    plain = stored.with_copies(plain, run_dir)
    if machine.ranks_around():
        restart.current = _attempt(run_dir)
    return launch(work, plain, run_dir, processes, _verbose())


def _hide_what_was_typed(run_dir: Path, secrets: set[str]) -> None:
    """In what Hydra has written already, and in what libraries will note of this process."""
    if rendezvous.writes_record():
        files = [run_dir.parent / "multirun.yaml", *(run_dir / ".hydra").glob("*.yaml")]
        hidden.hide_in_files(files, secrets)
    sys.argv[:] = hidden.hide(sys.argv, secrets)


def _attempt(run_dir: Path) -> Attempt:
    """What ranks that torchrun started again go on from."""
    found = rendezvous.first_says("attempt", lambda: attempts.decided(again.number(), run_dir))
    return Attempt(*found)


def _verbose() -> Verbose:
    said = HydraConfig.get().verbose if HydraConfig.initialized() else False
    return said if isinstance(said, bool | str) else list(said)


def was_stopped(error: BaseException) -> bool:
    """Whether somebody ended the run: by a signal, or by Ctrl-C."""
    by_signal = isinstance(error, RankFailed) and error.status > 128
    return by_signal or interrupted(error)


def in_a_line(error: BaseException) -> str:
    """What went wrong, or who stopped the run, without the traceback."""
    if isinstance(error, RankFailed):
        return error.cause
    if interrupted(error):
        return "stopped by Ctrl-C"
    text = str(error).strip().split("\n")[0]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _processes(config: DictConfig) -> int:
    """Ranks that this process has to start on this node; 1 stands for itself."""
    if "strategy" not in config or machine.ranks_around() is not None:
        return 1
    if config.strategy.processes != "one per device":
        return 1
    return machine.local_devices(config.trainer, one_device=False)
