"""The work of one process of `onecurve parity`."""

from functools import partial
from typing import Any

from omegaconf import OmegaConf

from ..launch.context import DIFFERS, RunContext
from ..parity.runs import Comparison, compare_in_rank, short_run
from .run import record
from .run.instantiate import build, build_group, build_task, trainer_errors
from .run.trainer import arguments_of, strategy_of


def work(config: dict[str, Any], context: RunContext) -> dict[str, Any]:
    """Compare the task under its strategy with a plain Trainer, and print the table.

    Returns:
        The error line for the command, if there is a difference.
    """
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    ours = {*short_run(1, {}), "min_epochs", "max_time", "profiler"}
    options = {name: value for name, value in arguments_of(cfg).items() if name not in ours}
    options["callbacks"] = build_group("callbacks", cfg.get("callbacks"))
    make_data = partial(build, "data", cfg.data)
    chosen = (strategy_of(cfg), options, cfg.parity.steps, cfg.parity.tolerance, cfg.seed)
    with trainer_errors():
        result = compare_in_rank(Comparison(partial(build_task, cfg), make_data, *chosen))
    if not result.rows:  # not the first rank
        return {}
    table = result.table()
    (run_dir / "parity.txt").write_text(table + "\n")
    record.finished(run_dir, {"strategy": cfg.strategy.name, "equal": result.equal})
    print(table)
    if result.equal:
        return {}
    kinds = " and ".join(result.kinds)
    return {DIFFERS: f"strategy={cfg.strategy.name}: differs from a plain Trainer: {kinds}"}
