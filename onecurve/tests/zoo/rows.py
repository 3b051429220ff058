"""The table: a task, its data, and what each strategy makes of it.

A cell is equal to single in float64; or the strategy refuses it before the first step in one line,
or announces in one that it will be another; or it is apart, as `onecurve.parity` tells.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onecurve.torch_versions import too_old

from . import data, gan, tasks

VALIDATION = data.validation
STRATEGIES = ("dp", "ddp", "fsdp", "pipeline")
# Of two axes, on four ranks; for some rows.
REPLICATED = ("replicated shards", "replicated pipelines")


@dataclass(frozen=True)
class Row:
    """A task and its data.

    Args:
        task: Makes the module.
        data: Makes what `Trainer.fit` takes for training.
        refused: For a strategy that cannot run it, a pattern of its answer.
        announced: For a strategy that runs it otherwise, a pattern of what it says.
        apart: Strategies that train on another loss, for it is no mean over samples.
        trainer: Arguments of the Trainer.
        validation: Makes what it takes for validation.
        under: The strategies that it is tried under, beside single.
        by_gpipe: Whether its loss is no mean over micro-batches, so that a pipeline needs gpipe.
    """

    task: Callable[[], tasks.Plain] = tasks.Plain
    data: Callable[[], Any] = data.plain
    refused: dict[str, str] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    trainer: dict[str, Any] = field(default_factory=dict)
    validation: Callable[[], Any] = VALIDATION
    under: tuple[str, ...] = STRATEGIES
    by_gpipe: bool = False


NO_LBFGS = dict.fromkeys(("fsdp", "pipeline"), "LBFGS")
NO_MEAN = ("ddp", "fsdp")
NO_PAIR = {"pipeline": r"a batch is not \(inputs, targets\) .* schedule=gpipe runs instead"}
# Of PyTorch's, those for any parameters; AdamW is that of all other rows.
OPTIMIZERS = (
    "Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD",
)  # fmt: skip
# Two ranks cannot validate a batch of one sample, so it is joined to the one before.
FULL_BATCHES = {"limit_val_batches": 2}
ROWS = {
    "plain": Row(),
    # Windows of 4, 4, 4, 4 and of 4, 1 samples.
    "accumulated": Row(
        tasks.MetricInTraining,
        partial(data.plain, 4),
        trainer={"accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
    ),
    "weighted sampler": Row(data=data.weighted),
    "sampler with replacement": Row(data=data.with_replacement),
    "batches of other sizes": Row(data=data.buckets),
    "augmentation in a split": Row(data=data.split),
    "dictionaries": Row(tasks.Dictionary, data.dictionaries, announced=NO_PAIR),
    "nested targets": Row(tasks.NestedTargets, data.nested),
    "named tuples": Row(data=data.named_tuples),
    "padded sequences": Row(tasks.OfSequences, data.ragged, by_gpipe=True),
    "padded sequences, prepared": Row(tasks.OfMeans, data.ragged, validation=data.ragged),
    "a dictionary for the network": Row(tasks.OfDictionaries, data.dictionaries, announced=NO_PAIR),
    "two training loaders": Row(tasks.TwoLoaders, data.two, announced=NO_PAIR),
    "two that share out unevenly": Row(
        tasks.TwoLoaders,
        data.two_uneven,
        announced={
            **dict.fromkeys(
                ("ddp", "fsdp"), "cannot share the loaders' batches of 10 and 5 samples evenly"
            ),
            **NO_PAIR,
        },
    ),
    "the shorter of two ends": Row(
        tasks.TwoLoaders, partial(data.two_as, "min_size"), announced=NO_PAIR
    ),
    "the shorter of two is over": Row(
        tasks.TwoLoaders, partial(data.two_as, "max_size"), announced=NO_PAIR
    ),
    "a stream beside a loader": Row(tasks.TwoLoaders, data.with_a_stream, announced=NO_PAIR),
    "several for validation": Row(tasks.Measured, validation=data.several),
    "a stream": Row(data=data.stream, validation=data.stream),
    "a stream, accumulated": Row(
        partial(tasks.Optimized, "SGD"),
        partial(data.stream, 4),
        trainer={"accumulate_grad_batches": 4},
    ),
    "no loader, accumulated": Row(
        data=partial(data.NoLoader, 9, 1, 11), trainer={"accumulate_grad_batches": 2}
    ),
    "a stream that differs between ranks": Row(
        data=data.stream_of_rank,
        refused=dict.fromkeys(
            ("ddp", "fsdp", "pipeline"),
            "OfRank yields different samples on some ranks; let it yield",
        ),
    ),
    "a stream that shuffles": Row(data=data.shuffled_stream, validation=data.shuffled_stream),
    "a stream without an end": Row(data=data.stateful_stream, trainer={"limit_train_batches": 3}),
    "a stream of batches": Row(data=data.whole_batches, validation=data.whole_batches),
    "a limit of validation": Row(trainer={"limit_val_batches": 2}),
    "noise in hooks": Row(tasks.NoiseInHooks),
    "thawed later": Row(tasks.Thawed),
    "frozen later": Row(tasks.FrozenLater),
    # Under the others it updates parameters as it does in one process, whichever it is.
    **{name: Row(partial(tasks.Optimized, name), under=("fsdp",)) for name in OPTIMIZERS},
    "Rprop": Row(
        partial(tasks.Optimized, "Rprop"),
        under=("fsdp",),
        refused={"fsdp": re.escape(line)} if (line := too_old("strategy=fsdp with Rprop")) else {},
    ),
    "Adafactor": Row(
        partial(tasks.Optimized, "Adafactor"), refused={"fsdp": "Adafactor cannot update shards"}
    ),
    # It computes the loss several times in a step, with a line search as often as it needs.
    "LBFGS": Row(partial(tasks.Optimized, "LBFGS", lr=0.1, max_iter=3), refused=NO_LBFGS),
    "LBFGS with a line search": Row(
        partial(tasks.Optimized, "LBFGS", lr=1, max_iter=4, line_search_fn="strong_wolfe"),
        refused=NO_LBFGS,
    ),
    "a sum": Row(tasks.Summed, by_gpipe=True, apart=NO_MEAN),
    "a weighted mean": Row(tasks.ClassWeighted, by_gpipe=True, apart=NO_MEAN),
    "a penalty": Row(
        tasks.Penalized,
        refused={
            "fsdp": "in another way than through self",
            "pipeline": "in another way than by calling net",
        },
    ),
    # Ranks have 5 and 4 samples of a batch: each backward pass counts them.
    "a GAN": Row(gan.Gan, partial(data.plain, 9)),
    "a network that it calls by name": Row(
        tasks.CallsByName, announced={"dp": r"does not call self\(inputs\), so one device"}
    ),
    "an unused layer": Row(
        tasks.Unused,
        refused={
            "ddp": "the step before used only some of the parameters; .*find_unused",
            "pipeline": "in another way than by calling net",
        },
    ),
    "a log for some batches": Row(
        tasks.LogsSometimes,
        refused=dict.fromkeys(("ddp", "fsdp"), "training_step logs train/large on some ranks"),
    ),
    "a log for some batches of validation": Row(
        tasks.ValidatesSometimes,
        refused=dict.fromkeys(("ddp", "fsdp"), "validation_step logs val/large on some ranks"),
    ),
    "time before batch": Row(
        tasks.TimeMajor,
        refused={"pipeline": "no sequence of layers"},
        announced={"dp": "may be the second dimension"},
    ),
    "a buffer that counts": Row(
        tasks.Counting,
        announced={"dp": "calls will differ .* with each part of a batch"},
        by_gpipe=True,
    ),
    "padding": Row(tasks.Padded, data.tokens, by_gpipe=True, apart=NO_MEAN, validation=data.tokens),
    "padding, with a weight": Row(tasks.PaddedWeighed, data.tokens, validation=data.tokens),
    "padding, accumulated": Row(
        tasks.PaddedWeighed,
        data.tokens,
        trainer={"accumulate_grad_batches": 3},
        validation=data.tokens,
    ),
    "class weights": Row(
        tasks.ClassWeightedSaid, data.dictionaries, trainer={"limit_val_batches": 0}
    ),
    "noise in prepare": Row(tasks.Denoising),
    "negatives in the batch": Row(
        tasks.Contrastive, by_gpipe=True, apart=NO_MEAN, trainer=FULL_BATCHES
    ),
    "negatives of all ranks": Row(tasks.ContrastiveOfAll, by_gpipe=True, trainer=FULL_BATCHES),
    "sampling": Row(tasks.Sampling),
}
# What `make test` trains under strategies; the others are more of a kind.
OF_EACH_KIND = (
    "accumulated",
    "batches of other sizes",
    "dictionaries",
    "padded sequences, prepared",
    "two training loaders",
    "a stream that shuffles",
    "noise in hooks",
    "thawed later",
    "Adafactor",
    "LBFGS",
    "a GAN",
    "an unused layer",
    "a log for some batches",
    "padding, with a weight",
    "negatives of all ranks",
)
# For rows that accumulate, those that make the same steps of one batch each.
IN_ONE_BATCH = {
    "accumulated": Row(
        tasks.MetricInTraining, partial(data.plain, 16), trainer={"gradient_clip_val": 0.1}
    ),
    "a stream, accumulated": Row(partial(tasks.Optimized, "SGD"), partial(data.stream, 16)),
    "no loader, accumulated": Row(data=partial(data.NoLoader, 10, 11)),
    "padding, accumulated": Row(
        tasks.PaddedWeighed, partial(data.tokens, 21), validation=data.tokens
    ),
}
ALSO_REPLICATED = (
    "accumulated",
    "padding, accumulated",
    "class weights",
    "noise in prepare",
    "a stream",
    "a stream that shuffles",
)
