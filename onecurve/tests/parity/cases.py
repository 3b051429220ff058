"""The table of what is exact: tasks and data as people have them, and strategies.

A cell is equal to a plain Trainer in float64, a resume in the middle included, unless
`Case.cells` has what the user is told instead. `test_table.py` asserts each, docs/exact.md has it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import attentions
import others
import sharded_networks
import stages
import torch
from conftest import PASSED_ON, ZBV
from gpu_check.tasks import small_tokens, small_transformer
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler
from several_fits import data as small_data
from torch import nn
from torch.utils.data import DataLoader
from zoo import data, tasks

import onecurve
from onecurve.parity import result
from onecurve.torch_versions import too_old

VALIDATION = data.validation
SHARDED = "does with sharded weights or gradients what PyTorch cannot"
SLOW = {"timeout_seconds": 30}
PIPELINE = {"microbatches": 2, **SLOW}
# How a strategy is made, and its devices.
STRATEGIES: dict[str, tuple[Callable[..., Any], dict[str, Any], int]] = {
    "single": (onecurve.Single, {}, 1),
    "dp": (onecurve.DP, {}, 2),
    "ddp": (onecurve.DDP, SLOW, 2),
    "fsdp": (onecurve.FSDP, SLOW, 2),
    "tensor": (onecurve.Tensor, SLOW, 2),
    "pipeline": (onecurve.Pipeline, PIPELINE, 2),
    "context": (onecurve.mesh, {"context": 2, **SLOW}, 2),
    "replicate x shard": (onecurve.mesh, {"replicate": 2, "shard": 2, **SLOW}, 4),
    "shard x tensor": (onecurve.mesh, {"shard": 2, "tensor": 2, **SLOW}, 4),
    "pipeline, interleaved": (onecurve.Pipeline, {**PIPELINE, "schedule": "interleaved_1f1b"}, 2),
    "pipeline, split backward": (onecurve.Pipeline, {**PIPELINE, "schedule": ZBV}, 2),
    "pipeline x shard": (onecurve.mesh, {"pipeline": 2, "shard": 2, **PIPELINE}, 4),
    "pipeline x tensor": (onecurve.mesh, {"pipeline": 2, "tensor": 2, **PIPELINE}, 4),
}
ALWAYS = ("single", "dp", "ddp", "fsdp", "tensor", "pipeline")
MESHES = ("replicate x shard", "shard x tensor", "pipeline x shard")
SCHEDULES = ("pipeline, interleaved", "pipeline, split backward")
EVERYWHERE = (*ALWAYS, *MESHES, *SCHEDULES)
OTHERS = tuple(name for name in ALWAYS if name != "dp")  # which splits at `forward` alone
SHARES = ("ddp", "fsdp")
RANKS = (*SHARES, "tensor", "pipeline")


class Cell(NamedTuple):
    """What the user is told where a cell is not just equal: words of the line."""

    kind: str
    words: str


# One line, or an error of PyTorch, before anything is trained that differs.
rejected, failed = partial(Cell, "rejected"), partial(Cell, "failed")
# The curve is equal, or the line says that it is not; `parity` names the cause.
announced, differs = partial(Cell, "a line"), partial(Cell, "differs")


def cells(under: Any, cell: Cell) -> dict[str, Cell]:
    """The same for several columns."""
    return dict.fromkeys((under,) if isinstance(under, str) else under, cell)


@dataclass(frozen=True)
class Case:
    """A row."""

    task: Callable[[], LightningModule] = tasks.Plain
    # What `Trainer.fit` takes for training, and for validation.
    data: Callable[[], Any] | None = data.plain
    validation: Callable[[], Any] | None = VALIDATION
    # What is told in which column, where the curve is not just equal.
    cells: dict[str, Cell] = field(default_factory=dict)
    # Of the strategy in a column, which the user needs to give; and of the Trainer.
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    # The columns in which it is tried.
    under: tuple[str, ...] = ALWAYS


def only(under: Any, cell: Cell) -> dict[str, Any]:
    """Tried in these columns alone, each of which says the same."""
    under = (under,) if isinstance(under, str) else under
    return {**cells(under, cell), "under": under}


def case(task: Callable[[], LightningModule] = tasks.Plain, *loaders: Any, **options: Any) -> Case:
    """A row: `Case` with a keyword for each column whose curve is not just equal."""
    told = {column: options.pop(column) for column in STRATEGIES if column in options}
    return Case(task, *loaders, cells=told, **options)


GPIPE = {"pipeline": {"schedule": "gpipe"}}
BY_GPIPE = {"pipeline": announced("schedule=gpipe runs instead, which is as exact")}
OTHER_LOSS = rejected(
    "was trained on, which is the mean of loss(outputs, targets) over micro-batches"
)
SUMMED_UP = announced("a mean over all samples is exact, a sum of the loaders'")
ALL_OF_IT = announced("every rank computes every batch of NoLoader")
GRADIENTS, DRAWS = differs(result.GRADIENTS), differs(result.DRAWS)
OTHER_STREAM = rejected("yields different samples on some ranks")
NO_LINEAR = {"tensor": rejected("it has no Linear layer, used once")}
SHARDED_TASK = cells(("fsdp", "tensor"), rejected(SHARDED))
ON_SOME = cells(SHARES, rejected("on some ranks only, so it cannot be averaged"))
SOME_PARAMETERS = rejected("used only some of the parameters")
ANOTHER_WAY = rejected("in another way than by calling net")
NO_MEAN = cells(SHARES, differs(result.MEAN))
LAYERS_OF_ONE = rejected("has no sequence of layers")
ACCUMULATED = {"accumulate_grad_batches": 3}

OF_DATA = {
    "inputs and targets, the last batch smaller than the ranks": case(under=EVERYWHERE),
    "a weighted sampler": case(data=data.weighted),
    "a batch sampler whose batches differ in size": case(data=data.buckets),
    "`seeded` augmentation, within an epoch": case(
        data=data.split, trainer={"steps": 3, "limit_train_batches": 3}
    ),
    "named tuples, and targets in a tree of containers": case(tasks.NestedTargets, data.nested),
    "padded sequences and their lengths": case(
        tasks.OfSequences, data.ragged, None, settings=GPIPE
    ),
    "batches that are dictionaries, and a network that takes them": case(
        tasks.OfDictionaries, data.dictionaries, None, **BY_GPIPE
    ),
    "two training loaders whose batches ranks cannot share evenly": case(
        tasks.TwoLoaders, data.two_uneven, **cells(SHARES, SUMMED_UP), **BY_GPIPE
    ),
    "a stream and a loader": case(tasks.TwoLoaders, data.with_a_stream, **BY_GPIPE),
    "several validation loaders, with a metric each": case(tasks.Measured, validation=data.several),
    "a stream that differs between ranks": case(
        data=partial(data.stream, kind=data.OfRank), **cells(RANKS, OTHER_STREAM)
    ),
    "a stream of samples that shuffles and draws": case(
        data=partial(data.stream, kind=data.Shuffled),
        validation=partial(data.stream, kind=data.Shuffled),
        under=EVERYWHERE,
    ),
    "a stream without an end, with a state": case(data=partial(data.stream, 9, data.Stateful)),
    "a stream of batches": case(data=data.whole_batches, validation=data.whole_batches),
    "a data set that makes full batches": case(data=data.full_batches),
    "batches of no DataLoader": case(
        data=partial(data.NoLoader, 9, 1, 11), **cells(SHARES, ALL_OF_IT)
    ),
    "two validation loaders at once": case(
        tasks.TwoLoaders, validation=data.two_at_once, **cells(SHARES, SUMMED_UP)
    ),
}
OF_STEPS = {
    "accumulation, logged by epoch": case(
        tasks.LogsEpochs, partial(data.plain, 7), trainer=ACCUMULATED, under=EVERYWHERE
    ),
    "accumulation, logged by step": case(data=partial(data.plain, 7), trainer=ACCUMULATED),
    "a schedule of accumulation": case(
        tasks.LogsEpochs,
        partial(data.plain, 7),
        trainer={"callbacks": [GradientAccumulationScheduler({0: 1, 1: 3})]},
    ),
    "clipping by norm": case(trainer={"gradient_clip_val": 0.1}, under=EVERYWHERE),
    "metrics, sums and extremes, logged while training; metrics in no module, of a window": case(
        tasks.MetricInTraining
    ),
    "what hooks of a task and of callbacks log": case(
        tasks.LogsInHooks, trainer={"callbacks": [tasks.LogsToo()]}
    ),
    "overfit_batches": case(tasks.LogsEpochs, trainer={"overfit_batches": 2}),
    "a plateau that waits for a metric, and early stopping": case(
        tasks.OnPlateau, trainer={"callbacks": [EarlyStopping("val/loss")]}
    ),
    "an exponential average that is validated": case(
        trainer={"callbacks": [onecurve.ExponentialMovingAverage(0.9)]}
    ),
    "layers that are thawed, and others that are frozen, later": case(tasks.FreezesByTurns),
    "every other optimizer of torch.optim": case(
        tasks.ManyOptimizers,
        pipeline=rejected("calls one without what the one before has returned"),
    ),
    "LBFGS": case(
        partial(tasks.Optimized, "LBFGS", lr=0.1, max_iter=3),
        **SHARDED_TASK,
        pipeline=rejected("LBFGS updates a parameter by the gradients of others"),
    ),
    "a sum over samples": case(
        tasks.Summed, **cells(SHARES, differs(result.SUM)), pipeline=OTHER_LOSS
    ),
    "a mean over tokens without padding": case(
        tasks.Padded, data.tokens, None, **NO_MEAN, pipeline=OTHER_LOSS
    ),
    "a mean over tokens without padding, said by `weight` and logged by tokens": case(
        tasks.PaddedWeighed, data.tokens, data.tokens
    ),
    "cross entropy by chunks": case(
        tasks.ByChunks, settings=GPIPE, under=("single", "dp", *SHARES, "pipeline")
    ),
    "negatives of the batch": case(tasks.Contrastive, **NO_MEAN, pipeline=OTHER_LOSS),
    "negatives of the batch, by `all_samples`": case(
        tasks.ContrastiveOfAll, settings=GPIPE, under=(*ALWAYS, *MESHES[:2])
    ),
    "a layer that no step uses": case(tasks.Unused, ddp=SOME_PARAMETERS, pipeline=ANOTHER_WAY),
    "a value that is logged for some batches": case(
        tasks.LogsSometimes, data.validation, **ON_SOME
    ),
    "positions before samples, in a GRU that begins with a state of its own": case(
        tasks.TimeMajor,
        validation=None,
        dp=announced("samples (10) may be the second dimension"),
        **NO_LINEAR,
        pipeline=LAYERS_OF_ONE,
    ),
    "a buffer that counts the calls of a network": case(
        tasks.Counting, dp=differs(result.PARTS), pipeline=OTHER_LOSS
    ),
    "BatchNorm, with statistics of the global batch": case(
        tasks.Normalized,
        partial(data.plain, 8),
        trainer={"sync_batchnorm": True},
        **cells(("dp", "pipeline"), differs(result.BATCHNORM)),
    ),
    "the same, in layers that are computed again, where some ranks have no sample": case(
        tasks.NormalizedInAllWays,
        partial(data.plain, 19),
        settings={"fsdp": {"activation_checkpointing": "full"}},
        trainer={"sync_batchnorm": True},
        under=("ddp", "fsdp", "replicate x shard"),
    ),
    "the same, accumulated": case(
        tasks.NormalizedInAllWays,
        partial(data.plain, 7),
        trainer={"sync_batchnorm": True, **ACCUMULATED},
        under=("ddp",),
    ),
    "BatchNorm": case(
        tasks.Normalized,
        partial(data.plain, 8),
        dp=Cell("differs", "has the statistics of each part of a batch, so the curve is not"),
        **cells((*SHARES, "pipeline"), differs(result.BATCHNORM)),
    ),
    "dropout": case(tasks.Dropped, **cells(RANKS, DRAWS), under=OTHERS),
    "noise that is drawn in `prepare`": case(tasks.Denoising),
    "the same, where a step calls it never, once or twice": case(
        tasks.PreparesNowAndThen, under=("single", *SHARES, "tensor")
    ),
    "activation checkpointing": case(
        settings={
            key: {"activation_checkpointing": "full"} for key in (*OTHERS, *MESHES, *SCHEDULES)
        },
        under=(*OTHERS, *MESHES, *SCHEDULES),
    ),
    "layers of some classes, gathered once, on the CPU": case(
        settings={
            "fsdp": {"wrap": ["Linear"], "reshard_after_forward": False, "cpu_offload": True}
        },
        under=("fsdp",),
    ),
    "DDP without views of buckets, whose graph is static": case(
        settings={"ddp": {"static_graph": True, "gradient_as_bucket_view": False}}, under=("ddp",)
    ),
    "weights whose gradients are one tensor, a view, or of several uses": case(
        tasks.SharesGradients,
        partial(data.plain, 8),
        settings={"pipeline": {"schedule": "interleaved_zero_bubble", "microbatches": 8}},
        under=OTHERS,
    ),
    "tied weights, and a parameter of the task": case(
        tasks.Tied,
        pipeline=rejected("share a parameter, but are on stages 0 and 1; give Pipeline("),
    ),
}


def other(task: Callable[[], LightningModule], **options: Any) -> Case:
    """A row of a task as others write it."""
    usual: dict[str, Any] = {"data": others.loaders, "validation": None, "under": OTHERS}
    return case(task, **{**usual, **options})


def network(make: Callable[[], Any], **options: Any) -> Case:
    """A row of a network, in the task of others."""
    return other(partial(others.Stranger, make), **options)


def network_that(then: Callable[[Any], Any], **options: Any) -> Case:
    """A row of a network that is called by `forward`, and does something in the end."""
    return other(partial(others.Forwards, partial(others.Then, then)), **options)


OF_LAYERS = {"pipeline": rejected("parameters or gradients, in another way than by calling model")}
OF_ANOTHER = {
    "pipeline": rejected("reads, draws or compares a weight or a gradient that another rank has")
}
BETWEEN = {"pipeline": rejected("uses what passes between them, or skips some")}
TWICE = {"pipeline": rejected("create_graph=True) does not pass through stages")}
STAGED = {"pipeline": LAYERS_OF_ONE}
BECAME = announced("became different ones on each rank")
METHODS = {name: {"forward_methods": ["encode"]} for name in ("fsdp", "tensor")}
FINER = {name: {"wrap": ["Sequential"]} for name in ("fsdp", "tensor")}
# What one rank alone rejects, for which the others wait.
OF_ONE_RANK: dict[str, dict[str, Any]] = {
    name: {"timeout_seconds": 2} for name in ("fsdp", "pipeline")
}
OF_ONE_STAGE = {"pipeline": OF_ONE_RANK["pipeline"]}
BY_RANKS: dict[str, Any] = {"under": ("ddp", "tensor")}
HOOKS = rejected("and 1 more have hooks (register_hook)")
OF_OTHERS = {
    "a network that is called by its name, and no `forward`": other(
        others.Stranger,
        dp=announced("does not call self(inputs), so one device computes the full"),
        under=(*ALWAYS, *MESHES),
    ),
    "a batch as keywords, and a dictionary of loss and logits": other(others.ByKeyword),
    "a batch of one's own class, in single precision": case(
        others.OfRows, others.rows, others.rows, under=OTHERS
    ),
    "layers of a sequence, called by themselves": other(others.BetweenLayers, **OF_LAYERS),
    "`forward` takes the batch": other(others.OfABatch, under=(*ALWAYS, "context")),
    "parameters without a dimension, frozen at first": other(others.TemperedLate),
    "learning rates that parameters hold": other(others.OwnRates),
    "an optimizer of a set of parameters": other(
        others.OfASet, **cells(RANKS, rejected("in another order on some ranks"))
    ),
    "hooks that read a batch, remove gradients, assign weights, and add noise to them": other(
        others.ChangesInHooks
    ),
    "another method, `forward` by its name, steps without a batch's number": other(
        others.CallsAMethod, settings=METHODS
    ),
    "a part of a module that is never called": other(others.CallsParts, settings=FINER),
    "no optimizer": other(others.HasNoOptimizer),
    "a penalty on a parameter of the task itself, another in an nn.ParameterDict": other(
        others.PenaltyOnItsOwn
    ),
    "manual optimization, `loss.backward()`": other(
        others.BackwardByHand,
        **cells(RANKS, rejected("calls loss.backward(), which does not know this")),
    ),
    "manual optimization, gradients of some parameters": other(
        others.OfSomeInputs, **cells(RANKS, rejected("call self.toggle_optimizer(optimizer)"))
    ),
    "manual optimization, gradients by autograd.grad": other(
        others.OfItsOwn, **OF_LAYERS, ddp=GRADIENTS, **SHARDED_TASK
    ),
    "manual optimization, clipped by PyTorch's clip_grad_norm_": other(
        others.ClipsItself, under=(*OTHERS, *MESHES)
    ),
    "two networks by turns, an optimizer each": other(
        others.CriticFirst, under=(*OTHERS, "shard x tensor")
    ),
    "a teacher whose weights are assigned after each step": other(
        others.AssignedTeacher, pipeline=rejected("for an average of weights")
    ),
    "other weights for the validation, and those of before again": other(others.Shadowed),
    "a teacher that is assigned within the step": other(
        others.TeacherInStep, ddp=SOME_PARAMETERS, tensor=rejected(SHARDED), **OF_LAYERS
    ),
    "a teacher that is made in on_fit_start": other(
        others.LateTeacher,
        **cells(("single", "ddp"), differs(result.LATE_PARTS)),
        **cells(("fsdp", "tensor"), rejected("cannot in on_fit_start")),
        pipeline=rejected("reads, draws or compares a weight"),
    ),
    "a queue whose length depends on the number of ranks": other(
        others.QueueOfRanks, **cells(RANKS, differs(result.LATE_WEIGHTS))
    ),
    "two networks by turns, frozen and bounded by hand": other(others.AdversariesOfPyTorch),
    "a weight that is set from the first batch": other(
        others.Centred,
        **cells(("single", "tensor", "pipeline"), differs(result.RESUME)),
        ddp=differs(result.KEPT),
        fsdp=differs(result.MEAN),
    ),
    "a buffer of a rank's own samples": other(others.KeepsAQueue, **cells(SHARES, BECAME)),
    "spectral_norm": network(
        others.spectral,
        pipeline=differs("buffers that the network changes"),
        settings={"pipeline": {"microbatches": 7}},
        under=("ddp", "fsdp", "pipeline"),
    ),
    "`all_gather` of rows, with gradients": other(
        partial(others.Gathers, others.gathered),
        **cells(SHARES, rejected("all_gather: ranks pass tensors of different shapes")),
    ),
    "rows that a step gathers by torch.distributed": other(
        partial(others.Gathers, others.gathered_by_pytorch),
        **cells(SHARES, rejected("torch.distributed.all_gather: ranks pass tensors of different")),
        **cells(("tensor", "pipeline"), rejected("gathers the same samples from several ranks")),
    ),
    "a metric object that is called and logged by step": other(
        others.LogsErrors, **cells(SHARES, differs(result.LOGGED))
    ),
    "the same with dist_sync_on_step=True": other(partial(others.LogsErrors, syncs=True)),
    "noise that is drawn in a step": other(others.AddsNoise, **cells((*SHARES, "pipeline"), DRAWS)),
    "samples that a hook of the batch mixes": other(others.MixesSamples, **cells(SHARES, DRAWS)),
    "layers that torch.compile has wrapped": network(
        lambda: torch.compile(others.pair(), backend="eager")  # without a compiler of C++
    ),
    "weight_norm and pruned weights": other(others.ComputesItsWeights),
    "a network that returns a distribution": other(others.OfADistribution, **NO_LINEAR, **STAGED),
    "an attention whose projection is stacked": network(
        others.Stacked, tensor=differs(result.PLAN), **STAGED
    ),
    "an attention that knows its width": network(
        others.one_block,
        tensor=rejected("holds only some of its heads or features"),
        pipeline=rejected("1 layers cannot make 2 stages"),
    ),
    "a convolution over positions": other(
        partial(others.Forwards, others.Neighbours),
        **NO_LINEAR,
        **STAGED,
        context=differs(result.POSITIONS),
        under=(*OTHERS, "context"),
    ),
    "a number for a batch": network_that(
        torch.mean, **only("dp", rejected("forward returned a number for the whole batch; return"))
    ),
    "a mean over positions": network_that(
        others.mean_over_positions,
        **only("context", rejected("positions, so it combines positions")),
    ),
    "layers that change their weights when they are called": network(others.masked, **NO_LINEAR),
    "a copy of a module in a step": other(others.Copies, **SHARDED_TASK, **OF_LAYERS),
    "a weight that is used outside of its module": other(
        others.UsesAWeight, **SHARDED_TASK, **OF_ANOTHER, settings=OF_ONE_STAGE
    ),
    "Lightning's grad_norm, and numbers of gradients, in a hook": other(
        others.LogsNorms, **OF_ANOTHER
    ),
    "Lightning's EMAWeightAveraging": other(
        others.Averaged, **SHARDED_TASK, **OF_ANOTHER, under=("fsdp", "tensor", "pipeline")
    ),
    "Lightning's BaseFinetuning": other(others.Unfreezes, tensor=rejected(SHARDED), **OF_ANOTHER),
    "nn.Embedding(max_norm=...)": other(
        others.ScalesRows, **cells(SHARES, rejected("scales rows by what a batch looks up"))
    ),
    "nn.Embedding(sparse=True)": other(
        partial(others.ScalesRows, sparse=True),
        **SHARDED_TASK,
        under=("single", "ddp", "fsdp", "tensor"),
    ),
    "experts that get samples on some ranks only": network(
        others.Experts,
        ddp=SOME_PARAMETERS,
        fsdp=rejected("ranks have trained different parameters in a step"),
        pipeline=rejected("calls one without what the one before has returned"),
    ),
    "experts that get samples on some ranks only, found by DDP": network(
        others.Experts, settings={"ddp": {"find_unused_parameters": True}}, under=("ddp",)
    ),
    "a layer's input that is changed in place": network(
        others.Flows, fsdp=rejected("changes in place"), under=SHARES
    ),
    "a layer that keeps a loss for the step": other(
        others.KeepsALoss, dp=differs(result.OF_PARTS), under=("dp", "ddp", "fsdp")
    ),
    "a complex64 parameter": other(
        others.Spectrum,
        ddp=differs(result.DIGITS),
        fsdp=rejected("AdamW cannot update shards of complex parameters"),
        under=SHARES,
    ),
    "training batches that a hook or a step reads itself": other(
        others.ReadsBatches, **only(SHARES, differs(result.MEAN))
    ),
    "a task with ABC for its first base": other(
        others.AbstractTask,
        **cells(("fsdp", "tensor"), rejected("a class has another base, such as ABC")),
    ),
    "a weight that is logged": other(
        others.LogsAWeight,
        pipeline=rejected("gets a number of weights or gradients that"),
        settings=OF_ONE_STAGE,
    ),
    "histograms of weights": other(others.DrawsHistograms, **SHARDED_TASK, **OF_ANOTHER),
    "blocks with a line of their own in between": network(others.PlacedBetween, **BETWEEN),
    "blocks that are called by torch.utils.checkpoint": network(
        others.Checkpointed, pipeline=rejected("use Pipeline(activation_checkpointing=")
    ),
    "a batch that is skipped": case(
        partial(tasks.Skips, 1),
        single=announced("returned None, which skips a batch; if that is not meant"),
        **cells(RANKS, rejected("which skips a batch in one process")),
        under=OTHERS,
    ),
    "training loaders that a hook replaces": other(
        others.ReplacesLoaders,
        **cells(("single", *RANKS), rejected("a hook has replaced a loader")),
    ),
    "hooks of parameters": other(others.ClampsByHooks, ddp=GRADIENTS, fsdp=HOOKS, tensor=HOOKS),
    "weights that are drawn once training begins, noise that is added to gradients": other(
        others.Drawn, **OF_ANOTHER
    ),
    "functions for full tensors, in `full_parameters`": other(others.ByFunctions),
    "a penalty on slopes, of a network that is called again": other(others.OwnSlopes, **TWICE),
    "an optimizer of one's own, with a state before its first step, and a schedule": other(
        others.Own, pipeline=differs("is not one of torch.optim, and each rank runs it on")
    ),
    "an optimizer that was made before the fit": other(
        others.MadeEarly,
        **cells(("fsdp", "tensor", "pipeline"), rejected("as it was made before ranks shared")),
    ),
    "a teacher in inference mode": other(others.Taught),
    "blocks that fill a cache": network(
        others.Cached,
        pipeline=rejected("calls one that changes what it is given, such as a cache"),
        **NO_LINEAR,
    ),
    "a hook that keeps what a layer returns": other(
        others.Hooked, pipeline=rejected("hooks of its layers (register_forward_hook)")
    ),
    "BatchNorm, a sample of a rank": other(
        others.Normalized,
        data=partial(others.loaders, 3),
        **only(("dp", "ddp"), rejected("BatchNorm cannot compute statistics of one")),
    ),
    "BatchNorm of a frozen network that a step sets to eval()": other(
        others.NormalizedBefore, under=("single", *SHARES)
    ),
    "an average of weights that a callback saves": other(
        others.Stranger,
        trainer={"callbacks": [others.KeepsAnAverage()]},
        **cells(
            ("fsdp", "tensor"),
            rejected("KeepsAnAverage has shards of weights, and a file has those of one rank"),
        ),
        **OF_ANOTHER,
    ),
    "a graph for each batch (batch_size=None)": other(
        others.OfGraphs,
        data=partial(DataLoader, others.Graphs(), batch_size=None),
        **cells(SHARES, rejected("each rank takes its rows of every tensor")),
    ),
    "PyTorch's SyncBatchNorm": other(
        partial(others.Normalized, nn.SyncBatchNorm),
        **only("ddp", rejected("PyTorch's SyncBatchNorm is for GPUs alone; use BatchNorm, and")),
    ),
    "`reduce` of rows": other(
        partial(others.Gathers, others.reduced),
        **only("ddp", rejected("self.trainer.strategy.all_samples(tensor) gathers a row")),
    ),
    "a loader that divides samples among ranks": other(
        others.LoadsItself, data=None, **only(("ddp", "tensor"), OTHER_STREAM)
    ),
    "a DistributedSampler of one's own": other(others.LoadsByRank, data=None, **BY_RANKS),
    "a DistributedSampler that yields batches": other(
        partial(others.LoadsByRank, True), data=None, **BY_RANKS
    ),
    "labels of Hugging Face, of which some are -100": other(
        others.FineTunes,
        data=others.texts,
        **only(SHARES, differs("labels of the batch are -100, of which ranks have different")),
    ),
    "the same, said by `weight`": other(
        others.FineTunesByWeight, data=others.texts, under=(*SHARES, "tensor")
    ),
    "detect_anomaly=True": other(
        others.Stranger, trainer={"detect_anomaly": True}, **only("tensor", rejected(SHARDED))
    ),
    "a network that one rank calls alone": other(
        others.CallsAlone,
        **only("fsdp", rejected("for another rank in on_train_epoch_end (others.py:")),
        settings=OF_ONE_RANK,
    ),
    "BatchNorm of the global batch, which is one sample in the end": other(
        others.Normalized,
        trainer={"sync_batchnorm": True, "steps": 10, "limit_train_batches": 5},
        **only("ddp", rejected("BatchNorm cannot compute statistics of one sample")),
    ),
}


# Its layers, and their options.
OF_TENSOR: dict[str, tuple[str, dict[str, Any]]] = {
    "a GPT": ("gpt", {}),
    "a GPT of tied weights": ("gpt", {"tied": True}),
    "torchvision's VisionTransformer": ("vit", {}),
    "nn.TransformerEncoder": ("encoder", {}),
    "fused projections, layers that are known by their classes": ("fused", {}),
    "activations in place": ("mlp", {"inplace": True}),
}
OF_OTHERS |= {
    row: Case(
        partial(sharded_networks.task_of, name, **options),
        partial(sharded_networks.batches, name),
        None,
        under=("tensor", "shard x tensor"),
    )
    for row, (name, options) in OF_TENSOR.items()
}


def staged(task: Callable[[], LightningModule], cell: Cell | None = None, **options: Any) -> Case:
    """A row of a task whose layers are cut into stages."""
    usual: dict[str, Any] = {"data": small_data, "validation": None, "under": ("pipeline",)}
    options = {**usual, **options}
    return case(task, **options, **(cells(options["under"], cell) if cell else {}))


def stages_of(network: Callable[[], Any], cell: Cell | None = None, **options: Any) -> Case:
    """A row of a network that is cut into stages."""
    return staged(partial(stages.Of, network), cell, **options)


def blocks_called(way: Callable[..., Any], words: str) -> Case:
    """A row of blocks that are no chain."""
    return staged(partial(stages.Otherwise, way), rejected(words))


def between(code: Callable[..., Any]) -> Case:
    """A row of a network with code between its modules."""
    return staged(partial(stages.Between, code), rejected("has no sequence of layers: "))


SPLIT = GPIPE if too_old(PASSED_ON) else {}
BY_SCHEDULES = ("pipeline",) if SPLIT else ("pipeline", *SCHEDULES)
ONE_BY_ONE = BY_GPIPE["pipeline"]
ON_A_MESH = {"pipeline x tensor": {"plan": {"*.pass_on": "colwise_gather"}}}


def sequences(network: Callable[[], Any]) -> Case:
    """A row of a network whose sequences are cut into shards."""
    return other(partial(attentions.Attends, network), under=("context",))


OF_SEQUENCES = {
    "attention: in both directions, causal, of grouped queries": sequences(
        attentions.in_all_directions
    ),
    "attention masks: of all positions, of each head, of each sample, of a shard's keys": sequences(
        attentions.masked
    ),
    "learned biases of distances and of keys": sequences(attentions.Biased),
    "nn.TransformerEncoder, causal or with padding": sequences(
        lambda: nn.Sequential(attentions.Encoder(padded=True), attentions.Encoder())
    ),
    "nn.MultiheadAttention": sequences(
        partial(attentions.OfTorch, others.WIDTH, 4, batch_first=True)
    ),
    "attention that torch.utils.checkpoint computes again": sequences(
        lambda: nn.Sequential(*map(attentions.Recomputed, (False, True)))
    ),
    "attention that torch.compile has compiled": other(
        partial(attentions.Attends, attentions.compiled), under=("context",)
    ),
    "a transformer, another axis as well": other(
        small_transformer,
        data=small_tokens,
        settings={
            "replicate x shard": {"context": 2, "shard": 1},
            "shard x tensor": {"context": 2, "tensor": 1},
            "pipeline x shard": {"context": 2, "shard": 1},
            "pipeline x tensor": {"context": 2, "pipeline": 1},
        },
        under=(*MESHES, "pipeline x tensor"),
    ),
}
OF_STAGES = {
    "two calls of a network in a step": staged(
        stages.TwoViews,
        pipeline=rejected("calls its network more than once; use Pipeline(schedule='gpipe'"),
        under=("dp", "pipeline"),
    ),
    "the same, schedule=gpipe": staged(stages.TwoViews, settings=GPIPE),
    "a method `loss` that takes something else": staged(stages.OtherLoss),
    "inputs moved along their own gradients": staged(stages.Attacked, ONE_BY_ONE),
    "a gradient of outputs in a step": staged(
        stages.Sloped, rejected("computes a gradient of its network's outputs")
    ),
    "a declared loss that compares all samples": staged(
        stages.OfAll, rejected("all_samples: needs the full batch"), settings=OF_ONE_RANK
    ),
    "a parameter beside the layers": staged(
        stages.ParameterOutside, rejected("the parameter temperature")
    ),
    "layers that are made when they are asked for": staged(
        stages.LayersOfAnother,
        rejected("the layer layers()[5] of LayersOfAnother has parameters that are none"),
    ),
    "weights and buffers with several names": staged(stages.Tied),
    "layers that pass tuples, one with a generator, one that is used again and again": stages_of(
        stages.tuples,
        settings={"pipeline": {"balance": [3, 7]}},
        under=("pipeline", "pipeline, split backward"),
    ),
    "a layer that branches on values": stages_of(
        stages.branching,
        rejected("strategy=pipeline: layer net.1 cannot be measured"),
    ),
    "layers that take something else, samples second": staged(stages.OfPositions, ONE_BY_ONE),
    "blocks that are called with a shape": staged(stages.OfShapes, ONE_BY_ONE),
    "blocks that are called with a table as long as a batch": staged(
        stages.OfTables,
        announced("the blocks in blocks get a tensor of 8 rows that is perhaps not of the"),
    ),
    "blocks that keep what they computed once": staged(
        partial(stages.OfShapes, stages.Remembering),
        rejected("calls one that keeps what it computed when it was measured without data"),
        settings=OF_ONE_RANK,
    ),
    "blocks, a mask and trained positions": staged(
        stages.Named, ONE_BY_ONE, settings=ON_A_MESH, under=("pipeline", "pipeline x tensor")
    ),
    "an encoder and a decoder": staged(stages.BothStacks, ONE_BY_ONE),
    "blocks in a dictionary, trained alone": staged(stages.Keyed, ONE_BY_ONE),
    "every other block": blocks_called(stages.skips, "does not call them one after the other"),
    "the first blocks": blocks_called(stages.stops, "calls 2 of 4 of them"),
    "blocks that get a trained number": blocks_called(
        stages.gives_a_trained_number, "calls one with a tensor () that is trained and of no sample"
    ),
    "a U-Net": stages_of(stages.UNet, settings=SPLIT, under=BY_SCHEDULES),
    "modules of the task itself, called as in PyTorch's MNIST example": staged(
        stages.OfTheTask, settings=SPLIT
    ),
    "code between modules that branches on values": between(stages.branches),
    "code between modules that depends on the mode": between(stages.by_mode),
    "code between modules that uses a parameter": between(stages.with_a_token),
    "the norm of gradients, numbers of all samples": staged(
        stages.AsksTheStrategy, under=(*OTHERS, *MESHES)
    ),
    "a state that is loaded again": staged(stages.GoesBack),
}
SECTIONS = {
    "Data": OF_DATA,
    "Steps, losses and optimizers": OF_STEPS,
    "Tasks as others write them": OF_OTHERS,
    "Sequences": OF_SEQUENCES,
    "Stages": OF_STAGES,
}
CASES = {name: case for rows in SECTIONS.values() for name, case in rows.items()}
