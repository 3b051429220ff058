"""Callbacks that cannot work with a strategy, with each other or as they are set, as a table."""

import re

from .rules import Plan, Rule

DURATION = re.compile(r"\d+:\d\d:\d\d:\d\d")

CALLBACK_RULES: tuple[Rule, ...] = (
    Rule(
        lambda plan: plan.has("tensorboard") and not plan.get("logger.tensorboard"),
        "callbacks=tensorboard: writes through logger.tensorboard, which was taken away; "
        "add +logger=tensorboard, or use ~callbacks.tensorboard",
    ),
    Rule(
        lambda plan: plan.has("wandb") and not plan.get("logger.wandb"),
        "callbacks=wandb: writes through logger.wandb, which was taken away; add +logger=wandb, "
        "or use ~callbacks.wandb",
    ),
    Rule(
        lambda plan: plan.has("batch_size_finder") and plan.strategy not in ("single", "dp"),
        "callbacks=batch_size_finder: a rank that runs out of memory leaves the others waiting, so "
        "it is not for strategy={strategy}; find the size of a device with strategy=single, and "
        "multiply",
    ),
    Rule(
        lambda plan: (
            plan.has("batch_size_finder")
            and plan.get("callbacks.batch_size_finder.first", 1)
            > plan.get("callbacks.batch_size_finder.largest", 1)
        ),
        "callbacks.batch_size_finder.first={config.callbacks.batch_size_finder.first}: must be at "
        "most largest={config.callbacks.batch_size_finder.largest}, such as "
        "callbacks.batch_size_finder.first=1",
    ),
    Rule(
        lambda plan: (
            plan.has("lr_finder")
            and plan.get("callbacks.lr_finder.min_lr", 0)
            >= plan.get("callbacks.lr_finder.max_lr", 1)
        ),
        "callbacks.lr_finder.min_lr={config.callbacks.lr_finder.min_lr}: must be below "
        "max_lr={config.callbacks.lr_finder.max_lr}, such as callbacks.lr_finder.min_lr=1e-6",
    ),
    Rule(
        lambda plan: (
            plan.has("timer") and not DURATION.fullmatch(str(plan.get("callbacks.timer.duration")))
        ),
        "callbacks.timer.duration={config.callbacks.timer.duration}: must be "
        "days:hours:minutes:seconds, such as callbacks.timer.duration=00:12:00:00",
    ),
    Rule(
        lambda plan: plan.get("callbacks.swa.validate") is True and plan.has("ema"),
        "callbacks.swa.validate=true: callbacks=ema has its own average validated; use "
        "callbacks.swa.validate=false, or ~callbacks.ema",
    ),
    Rule(
        lambda plan: plan.has("gradient_accumulation") and not _is_schedule(plan),
        "callbacks.gradient_accumulation.from_epochs="
        "{config.callbacks.gradient_accumulation.from_epochs}: must be rising epochs from 0, with "
        "as many numbers from 1 in batches={config.callbacks.gradient_accumulation.batches}, such "
        "as from_epochs=[0,4] batches=[1,2]",
    ),
    Rule(
        lambda plan: (
            plan.has("gradient_accumulation") and plan.get("trainer.accumulate_grad_batches", 1) > 1
        ),
        "trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches}: "
        "callbacks=gradient_accumulation sets it from epoch to epoch; leave one of them out",
    ),
    Rule(
        lambda plan: (
            plan.has("gradient_accumulation")
            and plan.has("swa")
            and plan.get("callbacks.swa.start", 0) >= 1
        ),
        "callbacks.swa.start={config.callbacks.swa.start}: epochs have different numbers of steps "
        "with callbacks=gradient_accumulation; give a share of the run, such as "
        "callbacks.swa.start=0.75",
    ),
)


def _is_schedule(plan: Plan) -> bool:
    epochs = list(plan.get("callbacks.gradient_accumulation.from_epochs", [0]))
    batches = list(plan.get("callbacks.gradient_accumulation.batches", [1]))
    numbers = all(type(number) is int for number in epochs + batches)
    return (
        numbers
        and len(epochs) == len(batches)
        and epochs[:1] == [0]
        and epochs == sorted(set(epochs))
        and min(batches) >= 1
    )
