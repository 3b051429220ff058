"""What one process of `python parity.py` does."""

from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.strategies import Strategy
from omegaconf import OmegaConf

from .. import machine
from ..run import record
from ..run.building import made
from ..run.fit import build_task
from ..run.outcome import DIFFERS
from ..run.to_type import typed_here
from ..run.trainer_arguments import refusing_arguments
from .runs import compared_here, shortened


def work(config: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Compare what is composed under its strategy with a plain Trainer, and print the table.

    Args:
        config: The resolved configuration of `parity.py`.
        run_dir: Where parity.txt and parity.html go.

    Returns:
        What the command ends with, if there is a difference.
    """
    cfg = OmegaConf.create(config)
    one_device = cfg.strategy.processes == "one"
    own = {*shortened(1, {}), "min_epochs", "max_time", "profiler"}
    options = {name: value for name, value in config["trainer"].items() if name not in own}
    options["accelerator"] = machine.accelerator(cfg.trainer, one_device)
    options["num_nodes"] = machine.num_nodes(cfg.trainer)
    if options["devices"] in ("auto", -1, "-1") or options["accelerator"] == "cpu":
        options["devices"] = machine.local_devices(cfg.trainer, one_device)
    options["callbacks"] = [
        made(f"callbacks.{name!s}", each, Callback)
        for name, each in (cfg.get("callbacks") or {}).items()
        if each
    ]
    about = {key: value for key, value in cfg.strategy.items() if key not in ("name", "processes")}
    with refusing_arguments():
        found = compared_here(
            partial(build_task, cfg),
            partial(made, "data", cfg.data, LightningDataModule),
            made("strategy", about, Strategy),
            options,
            cfg.parity.steps,
            cfg.parity.tolerance,
            cfg.seed,
        )
    if not found.rows:  # of another rank than the first
        return {}
    (run_dir / "parity.txt").write_text(found.table() + "\n")
    record.finished(run_dir, {"strategy": cfg.strategy.name, "equal": found.equal})
    print(found.table())
    try:
        found.draw(run_dir / "parity.html")
        print(f"Picture: {typed_here().short(run_dir / 'parity.html')}")
    except ModuleNotFoundError as error:
        print(f"parity.html: needs {error.name}; the extra `sweep` of onecurve brings it")
    if found.equal:
        return {}
    kinds = " and ".join(found.kinds)
    return {DIFFERS: f"strategy={cfg.strategy.name}: differs from a plain Trainer: {kinds}"}
