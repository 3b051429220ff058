"""Which combinations of choices cannot run: the rules of all that the library ships, by name.

A rule is a function of a composed run and of the key at which the group or the part stands. It
yields one line for each combination that cannot work. Free of torch.
"""

from collections.abc import Callable, Iterator

from ..composed_run import ComposedRun
from . import part_rules, run_rules, strategy_rules

Rule = Callable[[ComposedRun, str], Iterator[str]]

# Of the keys in no group, and of groups without `_target_`.
OF_GROUPS: dict[str, Rule] = {
    "": run_rules.top,
    "trainer": run_rules.trainer,
    "launch": run_rules.launch,
}
# By the module of what a `_target_` names: they hold for what is derived from it, too.
OF_MODULES: dict[str, Rule] = {
    "onecurve.averaging.swa": part_rules.swa,
    "onecurve.callbacks.batch_size_finder": part_rules.batch_size_finder,
    "onecurve.callbacks.gradient_accumulation": part_rules.gradient_accumulation,
    "onecurve.callbacks.katib": part_rules.katib,
    "onecurve.callbacks.lr_finder": part_rules.lr_finder,
    "onecurve.checkpoint.callback": part_rules.checkpoints,
    "onecurve.displays.callback": part_rules.displays,
    "onecurve.loggers.comet_run": part_rules.comet,
    "onecurve.loggers.mlflow_run": part_rules.mlflow,
    "onecurve.loggers.wandb_run": part_rules.wandb,
    "onecurve.optim.optimizers": part_rules.optimizer,
    "onecurve.strategies.ddp": strategy_rules.ddp,
    "onecurve.strategies.dp": strategy_rules.dp,
    "onecurve.strategies.fsdp.strategy": strategy_rules.fsdp,
    "onecurve.strategies.mesh.strategy": strategy_rules.mesh,
    "onecurve.strategies.pipeline.strategy": strategy_rules.pipeline,
    "onecurve.strategies.process_group": strategy_rules.process_group,
    "onecurve.strategies.tensor.strategy": strategy_rules.tensor,
}
