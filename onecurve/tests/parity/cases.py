"""The table of what is exact: tasks and data as people have them, and strategies.

A cell is equal to a plain Trainer in float64, a resume in the middle included, unless
`Case.cells` has what the user is told instead. `test_table.py` asserts each, docs/exact.md has it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import others
import sharded_networks
import stages
from conftest import PASSED_ON, ZBV
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler
from several_fits import data as small_data
from torch import nn
from zoo import data, tasks

import onecurve
from onecurve.parity import result
from onecurve.torch_versions import too_old

VALIDATION = data.validation
SHARDED = "does with sharded weights or gradients what PyTorch cannot"
IN_CONTEXT = "in `with self.trainer.strategy.full_parameters(self):`"
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
    "replicate x shard": (onecurve.mesh, {"replicate": 2, "shard": 2, "min_params": 1, **SLOW}, 4),
    "shard x tensor": (onecurve.mesh, {"shard": 2, "tensor": 2, "min_params": 1, **SLOW}, 4),
    "pipeline, interleaved": (onecurve.Pipeline, {**PIPELINE, "schedule": "interleaved_1f1b"}, 2),
    "pipeline, split backward": (onecurve.Pipeline, {**PIPELINE, "schedule": ZBV}, 2),
    "pipeline x shard": (
        onecurve.mesh,
        {"pipeline": 2, "shard": 2, "min_params": 1, **PIPELINE},
        4,
    ),
    "pipeline x tensor": (onecurve.mesh, {"pipeline": 2, "tensor": 2, **PIPELINE}, 4),
}
ALWAYS = ("single", "dp", "ddp", "fsdp", "tensor", "pipeline")
MESHES = ("replicate x shard", "shard x tensor", "pipeline x shard")
SCHEDULES = ("pipeline, interleaved", "pipeline, split backward")
OTHERS = tuple(name for name in ALWAYS if name != "dp")  # which splits at `forward` alone
SHARES = ("ddp", "fsdp")


class Cell(NamedTuple):
    """What the user is told where a cell is not just equal: words of the line."""

    kind: str
    words: str


def rejected(words: str) -> Cell:
    """One line, before anything is trained that differs."""
    return Cell("rejected", words)


def announced(words: str) -> Cell:
    """The curve is equal, or the line says that it is not."""
    return Cell("a line", words)


def differs(kind: str) -> Cell:
    """`parity` names the cause."""
    return Cell("differs", kind)


def failed(words: str) -> Cell:
    """An error of PyTorch, before anything is trained that differs."""
    return Cell("failed", words)


def cells(under: Any, cell: Cell) -> dict[str, Cell]:
    """The same for several columns."""
    return dict.fromkeys((under,) if isinstance(under, str) else under, cell)


@dataclass(frozen=True)
class Case:
    """A row.

    Args:
        task: Makes the module.
        data: Makes what `Trainer.fit` takes for training.
        validation: Makes what it takes for validation.
        cells: What is told in which column, where the curve is not just equal.
        settings: Settings of the strategy in a column, which the user needs to give.
        trainer: Arguments of the Trainer.
        under: The columns in which it is tried.
    """

    task: Callable[[], LightningModule] = tasks.Plain
    data: Callable[[], Any] | None = data.plain
    validation: Callable[[], Any] | None = VALIDATION
    cells: dict[str, Cell] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    under: tuple[str, ...] = ALWAYS


GPIPE = {"pipeline": {"schedule": "gpipe"}}
BY_GPIPE = {"pipeline": announced("schedule=gpipe runs instead, which is as exact")}
OTHER_LOSS = rejected(
    "was trained on, which is the mean of loss(outputs, targets) over micro-batches"
)
OTHER_STREAM = rejected("yields different samples on some ranks")
NO_LINEAR = {"tensor": rejected("it has no Linear layer, used once")}
ONE_OPTIMIZER = cells(("fsdp", "tensor"), rejected(SHARDED))
ON_SOME = cells(SHARES, rejected("on some ranks only, so it cannot be averaged"))
SOME_PARAMETERS = rejected("used only some of the parameters")
ANOTHER_WAY = rejected("in another way than by calling net")
NO_MEAN = cells(SHARES, differs(result.MEAN))
LAYERS_OF_ONE = rejected("has no sequence of layers")
ACCUMULATED = {"accumulate_grad_batches": 3}

OF_DATA = {
    "inputs and targets, the last batch smaller than the ranks": Case(
        under=(*ALWAYS, *MESHES, *SCHEDULES)
    ),
    "a weighted sampler": Case(data=data.weighted),
    "a sampler with replacement": Case(data=data.with_replacement),
    "a batch sampler whose batches differ in size": Case(data=data.buckets),
    "`seeded` augmentation, within an epoch": Case(
        data=data.split, trainer={"steps": 3, "limit_train_batches": 3}
    ),
    "batches that are dictionaries": Case(tasks.Dictionary, data.dictionaries, cells=BY_GPIPE),
    "targets in a tree of containers": Case(tasks.NestedTargets, data.nested),
    "named tuples": Case(data=data.named_tuples),
    "padded sequences and their lengths": Case(tasks.OfSequences, data.ragged, settings=GPIPE),
    "padded sequences, shortened in `prepare`": Case(tasks.OfMeans, data.ragged, data.ragged),
    "a network that takes a dictionary": Case(
        tasks.OfDictionaries, data.dictionaries, cells=BY_GPIPE
    ),
    "two training loaders": Case(tasks.TwoLoaders, data.two, cells=BY_GPIPE),
    "two training loaders whose batches ranks cannot share evenly": Case(
        tasks.TwoLoaders,
        data.two_uneven,
        cells={
            **cells(SHARES, announced("a mean over all samples is exact, a sum of the loaders'")),
            **BY_GPIPE,
        },
    ),
    "two training loaders, until the shorter ends": Case(
        tasks.TwoLoaders, partial(data.two_as, "min_size"), cells=BY_GPIPE
    ),
    "two training loaders, until the longer ends": Case(
        tasks.TwoLoaders, partial(data.two_as, "max_size"), cells=BY_GPIPE
    ),
    "a stream and a loader": Case(tasks.TwoLoaders, data.with_a_stream, cells=BY_GPIPE),
    "several validation loaders, with a metric each": Case(tasks.Measured, validation=data.several),
    "a stream of samples": Case(
        data=data.stream, validation=data.stream, under=(*ALWAYS, *MESHES, *SCHEDULES)
    ),
    "a stream that differs between ranks": Case(
        data=data.stream_of_rank, cells=cells((*SHARES, "tensor", "pipeline"), OTHER_STREAM)
    ),
    "a stream that shuffles and draws": Case(
        data=data.shuffled_stream, validation=data.shuffled_stream
    ),
    "a stream without an end, with a state": Case(data=data.stateful_stream),
    "a stream of batches": Case(data=data.whole_batches, validation=data.whole_batches),
    "a data set that makes full batches": Case(data=data.full_batches),
    "a data set that makes full batches, and a loader": Case(
        tasks.TwoLoaders, data.full_batches_and_others, cells=BY_GPIPE
    ),
    "batches of no DataLoader": Case(
        data=partial(data.NoLoader, 9, 1, 11),
        cells=cells(SHARES, announced("every rank computes every batch of NoLoader")),
    ),
    "two training loaders, the shorter again and again": Case(
        tasks.TwoLoaders, partial(data.two_as, "max_size_cycle"), cells=BY_GPIPE
    ),
    "two validation loaders at once": Case(
        tasks.LogsItsWayOfTwo,
        validation=data.two_at_once,
        cells=cells(SHARES, announced("a mean over all samples is exact, a sum of the loaders'")),
    ),
    "validation of no DataLoader": Case(
        tasks.LogsItsWay,
        validation=partial(data.NoLoader, 9, 1, 11),
        cells=cells(SHARES, announced("every rank computes every batch of NoLoader")),
    ),
    "validation of a list of batches": Case(tasks.LogsItsWay, validation=data.list_of_batches),
}
OF_STEPS = {
    "accumulation, logged by epoch": Case(
        tasks.LogsEpochs,
        partial(data.plain, 7),
        trainer=ACCUMULATED,
        under=(*ALWAYS, *MESHES, *SCHEDULES),
    ),
    "accumulation, logged by step": Case(
        data=partial(data.plain, 7),
        trainer=ACCUMULATED,
        cells=cells(ALWAYS, differs(result.ACCUMULATED)),
    ),
    "a schedule of accumulation": Case(
        tasks.LogsEpochs,
        partial(data.plain, 7),
        trainer={"callbacks": [GradientAccumulationScheduler({0: 1, 1: 3})]},
    ),
    "clipping by norm": Case(
        trainer={"gradient_clip_val": 0.1}, under=(*ALWAYS, *MESHES, *SCHEDULES)
    ),
    "clipping by value": Case(
        trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    ),
    "metrics, sums and extremes, logged while training": Case(tasks.MetricInTraining),
    "what hooks of a task and of callbacks log": Case(
        tasks.LogsInHooks, trainer={"callbacks": [tasks.LogsToo()]}
    ),
    "what hooks log, with accumulation": Case(
        partial(tasks.LogsInHooks, by_step=False), partial(data.plain, 7), trainer=ACCUMULATED
    ),
    "overfit_batches": Case(tasks.LogsEpochs, trainer={"overfit_batches": 2}),
    "a plateau that waits for a metric, and early stopping": Case(
        tasks.OnPlateau, trainer={"callbacks": [EarlyStopping("val/loss")]}
    ),
    "an exponential average that is validated": Case(
        trainer={"callbacks": [onecurve.ExponentialMovingAverage(0.9)]}
    ),
    "noise that hooks add to weights": Case(tasks.NoiseInHooks),
    "layers that are thawed later": Case(tasks.Thawed),
    "layers that are frozen later": Case(tasks.FrozenLater),
    "every other optimizer of torch.optim": Case(
        tasks.ManyOptimizers,
        cells={"pipeline": rejected("calls one without what the one before has returned")},
    ),
    "AdamW(fused=True)": Case(partial(tasks.Optimized, "AdamW")),
    "Adafactor": Case(partial(tasks.Optimized, "Adafactor"), cells=ONE_OPTIMIZER),
    "LBFGS": Case(
        partial(tasks.Optimized, "LBFGS", lr=0.1, max_iter=3),
        cells={
            **ONE_OPTIMIZER,
            "pipeline": rejected("LBFGS updates a parameter by the gradients of others"),
        },
    ),
    "a sum over samples": Case(
        tasks.Summed, cells={**cells(SHARES, differs(result.SUM)), "pipeline": OTHER_LOSS}
    ),
    "a mean by class weights": Case(tasks.ClassWeighted, cells={**NO_MEAN, "pipeline": OTHER_LOSS}),
    "a mean by class weights, said by `weight`": Case(
        tasks.ClassWeightedSaid, data.dictionaries, trainer={"limit_val_batches": 0}
    ),
    "a mean over tokens without padding": Case(
        tasks.Padded, data.tokens, None, cells={**NO_MEAN, "pipeline": OTHER_LOSS}
    ),
    "a mean over tokens without padding, said by `weight`": Case(
        tasks.PaddedWeighed, data.tokens, data.tokens
    ),
    "the same, logged by tokens over an epoch": Case(
        tasks.PaddedCounted, data.tokens, data.tokens, under=SHARES
    ),
    "cross entropy by chunks": Case(
        tasks.ByChunks, settings=GPIPE, under=("single", "dp", *SHARES, "pipeline")
    ),
    "negatives of the batch": Case(tasks.Contrastive, cells={**NO_MEAN, "pipeline": OTHER_LOSS}),
    "negatives of the batch, by `all_samples`": Case(
        tasks.ContrastiveOfAll, settings=GPIPE, under=(*ALWAYS, *MESHES[:2])
    ),
    "a layer that no step uses": Case(
        tasks.Unused, cells={"ddp": SOME_PARAMETERS, "pipeline": ANOTHER_WAY}
    ),
    "a value that is logged for some batches": Case(
        tasks.LogsSometimes, data.validation, cells=ON_SOME
    ),
    "a value that is logged for some batches of validation": Case(
        tasks.ValidatesSometimes, cells=ON_SOME
    ),
    "positions before samples": Case(
        tasks.TimeMajor,
        cells={
            "dp": announced("samples (10) may be the second dimension"),
            **NO_LINEAR,
            "pipeline": LAYERS_OF_ONE,
        },
    ),
    "a buffer that counts the calls of a network": Case(
        tasks.Counting,
        cells={
            "dp": Cell("differs", "calls will differ from strategy=Single(), as forward changes"),
            "pipeline": OTHER_LOSS,
        },
    ),
    "BatchNorm, with statistics of the global batch": Case(
        tasks.Normalized,
        partial(data.plain, 8),
        trainer={"sync_batchnorm": True},
        cells=cells(("dp", "pipeline"), differs(result.BATCHNORM)),
    ),
    "the same, where some ranks have no sample of the last batch": Case(
        tasks.NormalizedInAllWays,
        partial(data.plain, 19),
        trainer={"sync_batchnorm": True},
        under=("ddp", "fsdp", "replicate x shard"),
    ),
    "the same, called by one rank alone": Case(
        tasks.NormalizedInAllWays,
        partial(data.plain, 8),
        trainer={"sync_batchnorm": True, "callbacks": [tasks.CallsOnOneRank()]},
        under=("ddp",),
    ),
    "the same, accumulated": Case(
        tasks.NormalizedInAllWays,
        partial(data.plain, 7),
        trainer={"sync_batchnorm": True, **ACCUMULATED},
        under=("ddp",),
    ),
    "BatchNorm": Case(
        tasks.Normalized,
        partial(data.plain, 8),
        cells={
            "dp": Cell("differs", "will differ from strategy=Single(), as BatchNorm computes them"),
            **cells((*SHARES, "pipeline"), differs(result.BATCHNORM)),
        },
    ),
    "dropout": Case(
        tasks.Dropped,
        cells=cells((*SHARES, "tensor", "pipeline"), differs(result.DRAWS)),
        under=OTHERS,
    ),
    "noise that is drawn in `prepare`": Case(tasks.Denoising),
    "activation checkpointing": Case(
        settings={
            key: {"activation_checkpointing": "full"} for key in (*OTHERS, *MESHES, *SCHEDULES)
        },
        under=(*OTHERS, *MESHES, *SCHEDULES),
    ),
    "layers of some classes, gathered once, on the CPU": Case(
        settings={
            "fsdp": {"wrap": ["Linear"], "reshard_after_forward": False, "cpu_offload": True}
        },
        under=("fsdp",),
    ),
    "DDP without views of buckets, whose graph is static": Case(
        settings={"ddp": {"static_graph": True, "gradient_as_bucket_view": False}}, under=("ddp",)
    ),
    "weights whose gradients are one tensor, a view, or of several uses": Case(
        tasks.SharesGradients,
        settings={"pipeline": {"schedule": "interleaved_zero_bubble"}},
        under=OTHERS,
    ),
    "the same, a sample in each micro-batch": Case(
        tasks.SharesGradients,
        partial(data.plain, 8),
        settings={"pipeline, split backward": {"microbatches": 8}},
        under=("pipeline, split backward",),
    ),
    "tied weights, and a parameter of the task": Case(
        tasks.Tied,
        cells={
            "pipeline": rejected("share a parameter, but are on stages 0 and 1; give Pipeline(")
        },
    ),
    "calls of the network between epochs": Case(tasks.Sampling),
    "what a step keeps in no checkpoint": Case(
        tasks.Remembers,
        cells={
            **cells(ALWAYS, differs(result.RESUME)),
            **cells(SHARES, differs(result.KEPT)),
            "pipeline": OTHER_LOSS,
        },
    ),
}


def other(task: Callable[[], LightningModule], **options: Any) -> Case:
    """A row of a task as others write it."""
    usual: dict[str, Any] = {"data": others.loaders, "validation": None, "under": OTHERS}
    return Case(task, **{**usual, **options})


def network(make: Callable[[], Any], **options: Any) -> Case:
    """A row of a network, in the task of others."""
    return other(partial(others.Stranger, make), **options)


SHARDED_TASK = cells(("fsdp", "tensor"), rejected(SHARDED))
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
OWN_OPTIMIZER = {"pipeline": announced("is not one of torch.optim, and each rank runs it on")}
# What one rank alone rejects, for which the others wait.
OF_ONE_RANK: dict[str, dict[str, Any]] = {
    name: {"timeout_seconds": 2} for name in ("fsdp", "pipeline")
}
HOOKS = rejected("and 1 more have hooks (register_hook)")
OF_OTHERS = {
    "a network that is called by its name, and no `forward`": other(
        others.Stranger,
        cells={"dp": announced("does not call self(inputs), so one device computes the full")},
        under=(*ALWAYS, *MESHES),
    ),
    "a batch as keywords, and a dictionary of loss and logits": other(others.ByKeyword),
    "a batch of one's own class, in single precision": Case(
        others.OfRows, others.rows, others.rows, under=OTHERS
    ),
    "`forward` takes the batch": other(others.OfABatch, under=(*ALWAYS, "context")),
    "parameters without a dimension, frozen at first": other(others.ScaledLate),
    "gradients that are removed in a hook": other(others.RemovesGradients),
    "another method than `forward`": other(others.CallsAMethod, settings=METHODS),
    "`forward` by its name, steps without a batch's number": other(others.CallsByName),
    "a part of a module that is never called": other(others.CallsParts, settings=FINER),
    "no optimizer": other(others.HasNoOptimizer),
    "layers that are frozen in a step": other(
        others.FreezesInItsStep, cells={"ddp": differs(result.GRADIENTS)}
    ),
    "a penalty on a parameter of the task itself": other(others.PenaltyOnItsOwn),
    "a parameter in an nn.ParameterDict": other(others.Prompted),
    "manual optimization, `loss.backward()`": other(
        others.BackwardByHand,
        cells=cells(
            ("ddp", "fsdp", "tensor", "pipeline"),
            rejected("calls loss.backward(), which does not know this"),
        ),
    ),
    "manual optimization, gradients of some parameters": other(
        others.OfSomeInputs,
        cells=cells(
            ("ddp", "fsdp", "tensor", "pipeline"), rejected("call self.toggle_optimizer(optimizer)")
        ),
    ),
    "manual optimization, gradients by autograd.grad": other(
        others.OfItsOwn,
        cells={
            **OF_LAYERS,
            "ddp": differs(result.GRADIENTS),
            "fsdp": rejected(SHARDED),
            "tensor": rejected("calls loss.backward()"),
        },
    ),
    "the same, averaged by `reduce`": other(
        others.OfItsOwnAveraged, cells={**SHARDED_TASK, **OF_LAYERS}
    ),
    "manual optimization, clipped by PyTorch's clip_grad_norm_": other(
        others.ClipsItself, under=(*OTHERS, *MESHES)
    ),
    "two networks by turns, an optimizer each": other(
        others.CriticFirst, under=(*OTHERS, "shard x tensor")
    ),
    "a list that is made in on_train_epoch_start": other(
        others.LateList,
        cells=cells(("single", "ddp"), differs(result.LATE_PARTS)),
        under=("single", "ddp"),
    ),
    "a teacher that is made in on_fit_start": other(
        others.LateTeacher,
        cells={
            **cells(("single", "ddp"), differs(result.LATE_PARTS)),
            **cells(("fsdp", "tensor"), rejected("cannot in on_fit_start")),
            "pipeline": rejected("reads, draws or compares a weight"),
        },
    ),
    "a part that is frozen for a while in a step": other(
        others.FrozenForAWhile, cells={"ddp": rejected("used only some of the parameters")}
    ),
    "two networks by turns, frozen and bounded by hand": other(others.AdversariesOfPyTorch),
    "a weight that is set from the first batch": other(
        others.Centred,
        cells={
            **cells(("single", "tensor", "pipeline"), differs(result.RESUME)),
            "ddp": differs(result.KEPT),
            "fsdp": differs(result.MEAN),
        },
    ),
    "a buffer of a rank's own samples": other(others.KeepsAQueue, cells=cells(SHARES, BECAME)),
    "manual optimization that returns no loss, a mean over all rows": other(
        partial(others.ByHandOfNone, False),
        cells=cells(SHARES, differs("a mean over something else")),
        under=SHARES,
    ),
    "the same, rows that are kept in a list": other(
        partial(others.ByHandOfNone, True),
        cells=cells(SHARES, differs("what a step keeps")),
        under=SHARES,
    ),
    "spectral_norm": network(
        others.Spectral,
        cells={"pipeline": differs("buffers that the network changes")},
        settings={"pipeline": {"microbatches": 7}},
        under=("ddp", "fsdp", "pipeline"),
    ),
    "`all_gather` of rows, with gradients": other(
        partial(others.Gathers, others.gathered),
        cells=cells(SHARES, rejected("all_gather: ranks pass tensors of different shapes")),
    ),
    "a metric object that is called and logged by step": other(
        others.LogsErrors, cells=cells(SHARES, differs(result.LOGGED))
    ),
    "the same with dist_sync_on_step=True": other(partial(others.LogsErrors, syncs=True)),
    "metrics outside of modules, of an epoch, of a window": other(
        others.Counts, cells=cells(SHARES, announced("running of a step is that of the first"))
    ),
    "noise that is drawn in a step": other(
        others.AddsNoise, cells=cells((*SHARES, "pipeline"), differs(result.DRAWS))
    ),
    "a GRU that begins with a state of its own": other(
        others.Recurrent, cells={**NO_LINEAR, "pipeline": LAYERS_OF_ONE}
    ),
    "weight_norm": other(others.NormedByWeight),
    "pruned weights": other(others.Pruned),
    "a network that returns a distribution": other(
        others.OfADistribution, cells={**NO_LINEAR, **STAGED}
    ),
    "blocks of attention and feed-forward network": network(
        others.blocks, settings={"tensor": {"sequence": True}}, under=("tensor", "pipeline")
    ),
    "blocks with their sum inside": network(others.with_sums_inside),
    "attentions of one projection, in several orders": other(others.OfOneProjection),
    "an attention whose projection is stacked": network(
        others.Stacked, cells={"tensor": differs(result.PLAN), **STAGED}
    ),
    "an attention that knows its width": network(
        others.one_block,
        cells={
            "tensor": rejected("holds only some of its heads or features"),
            "pipeline": rejected("1 layers cannot make 2 stages"),
        },
    ),
    "a convolution over positions": other(
        others.OfNeighbours,
        cells={**NO_LINEAR, **STAGED, "context": differs(result.POSITIONS)},
        under=(*OTHERS, "context"),
    ),
    "layers that change their weights when they are called": other(
        others.ChangesWeights, cells=NO_LINEAR
    ),
    "weights that are assigned before each batch": other(others.AssignsWeights),
    "a copy of a module in a step": other(
        others.Copies,
        cells={
            **cells(("fsdp", "tensor"), rejected(SHARDED)),
            **OF_LAYERS,
        },
    ),
    "a penalty, added in place": other(
        others.PenalizedInPlace, cells={**SHARDED_TASK, **OF_LAYERS}
    ),
    "a weight that is used outside of its module": other(
        others.UsesAWeight, cells={**SHARDED_TASK, **OF_ANOTHER}
    ),
    "Lightning's grad_norm, and numbers of gradients, in a hook": other(
        others.LogsNorms, cells=OF_ANOTHER
    ),
    "Lightning's EMAWeightAveraging": other(
        others.Averaged,
        cells={**SHARDED_TASK, **OF_ANOTHER},
        under=("fsdp", "tensor", "pipeline"),
    ),
    "a loss of slopes alone": other(
        others.PenalizesSlopes, cells={"ddp": SOME_PARAMETERS, **TWICE}
    ),
    "Lightning's BaseFinetuning": other(
        others.Unfreezes, cells={"tensor": rejected(SHARDED), **OF_ANOTHER}
    ),
    "nn.Embedding(max_norm=...)": other(
        others.ScalesRows, cells=cells(SHARES, rejected("scales the rows that it looks up"))
    ),
    "nn.Embedding(scale_grad_by_freq=True)": other(
        partial(others.ScalesRows, scale_grad_by_freq=True),
        cells=cells(
            (*SHARES, "pipeline"), rejected("divides gradients by how often a batch looks up")
        ),
    ),
    "nn.Embedding(sparse=True)": other(
        partial(others.ScalesRows, sparse=True),
        cells=SHARDED_TASK,
        under=("single", "ddp", "fsdp", "tensor"),
    ),
    "parameters of the task that only some steps use": other(
        others.UsesSome, cells={"ddp": SOME_PARAMETERS}
    ),
    "experts that get samples on some ranks only": other(
        others.OfExperts,
        data=others.for_experts,
        cells={
            "ddp": SOME_PARAMETERS,
            "fsdp": rejected("ranks have trained different parameters in a step"),
            "pipeline": rejected("calls one without what the one before has returned"),
        },
    ),
    "experts that get samples on some ranks only, found by DDP": other(
        others.OfExperts,
        data=others.for_experts,
        settings={"ddp": {"find_unused_parameters": True}},
        under=("ddp",),
    ),
    "a layer's input that is changed in place": other(
        others.ChangesItsInput,
        cells={"fsdp": rejected("changes in place")},
        under=SHARES,
    ),
    "a layer that keeps a loss for the step": other(
        others.KeepsALoss,
        cells={"dp": differs(result.OF_PARTS)},
        under=("dp", "ddp", "fsdp"),
    ),
    "a complex64 parameter": other(
        others.Spectrum,
        cells={
            "ddp": differs(result.DIGITS),
            "fsdp": rejected("AdamW cannot update shards of complex parameters"),
        },
        under=SHARES,
    ),
    "training batches that a hook or a step reads itself": other(
        others.ReadsBatches,
        cells=cells(SHARES, differs(result.MEAN)),
        under=SHARES,
    ),
    "a task with ABC for its first base": other(
        others.AbstractTask,
        cells=cells(("fsdp", "tensor"), rejected("a class has another base, such as ABC")),
    ),
    "a weight that is logged": other(
        others.LogsAWeight,
        cells={"pipeline": rejected("gets a number of weights or gradients that")},
    ),
    "histograms of weights": other(others.DrawsHistograms, cells={**SHARDED_TASK, **OF_ANOTHER}),
    "weights that get other memory": other(
        others.SetsWeights, cells={"ddp": differs(result.GRADIENTS), **SHARDED_TASK}
    ),
    "rows of a weight that are drawn": other(
        others.DrawsParts,
        cells={**cells(("fsdp", "tensor"), rejected(IN_CONTEXT)), **OF_ANOTHER},
    ),
    "blocks with a line of their own in between": network(others.PlacedBetween, cells=BETWEEN),
    "blocks that are called by torch.utils.checkpoint": network(
        others.Checkpointed, cells={"pipeline": rejected("use Pipeline(activation_checkpointing=")}
    ),
    "a batch that is skipped": other(
        others.SkipsABatch,
        cells={
            "single": announced("returned None, which skips a batch; if that is not meant"),
            **cells(
                (*SHARES, "tensor", "pipeline"), rejected("which skips a batch in one process")
            ),
        },
    ),
    "hooks of parameters": other(
        others.ClampsByHooks,
        cells={"ddp": differs(result.GRADIENTS), "fsdp": HOOKS, "tensor": HOOKS},
    ),
    "weights that are drawn once training begins": other(others.Drawn, cells=OF_ANOTHER),
    "the same in `full_parameters`": other(others.DrawnFull),
    "noise that is added to gradients": other(others.Noise, cells=OF_ANOTHER),
    "functions for full tensors, in `full_parameters`": other(others.ByFunctions),
    "gradients and weights that are assigned, norms as numbers": other(
        others.ByNumbers, cells={"ddp": differs(result.GRADIENTS), **OF_ANOTHER}
    ),
    "gradients that are read before they are cleared": other(
        others.BeforeZeroing, cells=OF_ANOTHER
    ),
    "SGD(fused=True)": other(others.Fused, cells=SHARDED_TASK),
    "a gradient within the loss, by hand": other(others.Slopes, cells=BETWEEN),
    "a network that is called after its slopes": other(others.OwnSlopes, cells=TWICE),
    "an optimizer and a schedule of one's own": other(others.Own, cells=OWN_OPTIMIZER),
    "an optimizer of one's own, by the norm of all": other(
        partial(others.Own, others.ByNorm),
        cells={"pipeline": differs("is not one of torch.optim")},
    ),
    "an optimizer that was made before the fit": other(others.MadeEarly),
    "a teacher in inference mode": other(others.Taught),
    "blocks that fill a cache": network(
        others.Cached,
        cells={"pipeline": rejected("calls one that changes what it is given, such as a cache")},
    ),
    "a hook that keeps what a layer returns": other(
        others.Hooked, cells={"pipeline": rejected("hooks of its layers (register_forward_hook)")}
    ),
    "BatchNorm, a sample of a rank": other(
        others.Normalized,
        data=partial(others.loaders, 3),
        cells=cells(("dp", "ddp"), rejected("BatchNorm cannot compute statistics of one")),
        under=("dp", "ddp"),
    ),
    "BatchNorm in layers that are computed again": other(
        others.Normalized,
        settings={
            "single": {"activation_checkpointing": "full"},
            "ddp": {"activation_checkpointing": "selective"},
            "fsdp": {"activation_checkpointing": "full"},
        },
        trainer={"sync_batchnorm": True},
        under=("single", "ddp", "fsdp"),
    ),
    "second derivatives through BatchNorm of the global batch": other(
        others.PenalizesNormalized,
        trainer={"sync_batchnorm": True},
        cells={"ddp": rejected("the loss has second derivatives through BatchNorm")},
        under=("ddp",),
    ),
    "PyTorch's SyncBatchNorm": other(
        partial(others.Normalized, nn.SyncBatchNorm),
        cells={"ddp": rejected("PyTorch's SyncBatchNorm is for GPUs alone; use BatchNorm, and")},
        under=("ddp",),
    ),
    "`reduce` of rows": other(
        partial(others.Gathers, others.reduced),
        cells={"ddp": rejected("self.trainer.strategy.all_samples(tensor) gathers a row")},
        under=("ddp",),
    ),
    "a loader that divides samples among ranks": Case(
        others.LoadsItself,
        None,
        None,
        cells(("ddp", "tensor"), rejected("OwnLoader yields different samples on some ranks; let")),
        under=("ddp", "tensor"),
    ),
    "detect_anomaly=True": other(
        others.Stranger,
        trainer={"detect_anomaly": True},
        cells={"tensor": rejected(SHARDED)},
        under=("tensor",),
    ),
    "a network that one rank calls alone": other(
        others.CallsAlone,
        cells={"fsdp": rejected("for another rank in on_train_epoch_end (others.py:")},
        settings=OF_ONE_RANK,
        under=("fsdp",),
    ),
    "a network that ranks call unequally often": other(
        others.CallsSometimes,
        cells={"fsdp": rejected("a part of CallsSometimes: call it as often on all")},
        settings=OF_ONE_RANK,
        under=("fsdp",),
    ),
    "torch.func": other(
        others.Mapped,
        cells={
            "ddp": SOME_PARAMETERS,
            "tensor": rejected(SHARDED),
            "pipeline": failed("an autograd.Function with functorch transforms"),
        },
    ),
    "BatchNorm of the global batch, which is one sample in the end": other(
        others.Normalized,
        trainer={"sync_batchnorm": True, "steps": 10, "limit_train_batches": 5},
        cells={"ddp": rejected("BatchNorm cannot compute statistics of one sample")},
        under=("ddp",),
    ),
}


# Its layers, their options, and whether it is sharded along the sequence as well.
OF_TENSOR: dict[str, tuple[str, dict[str, Any], bool]] = {
    "a GPT": ("gpt", {}, False),
    "a GPT of tied weights, along the sequence": ("gpt", {"tied": True}, True),
    "torchvision's VisionTransformer, along the sequence": ("vit", {}, True),
    "nn.TransformerEncoder, along the sequence": ("encoder", {}, True),
    "layers that are known by their classes": ("named", {}, False),
    "fused projections, along the sequence": ("fused", {}, True),
    "activations in place": ("mlp", {"inplace": True}, False),
}
OF_OTHERS |= {
    row: Case(
        partial(sharded_networks.task_of, name, **options),
        partial(sharded_networks.batches, name),
        None,
        settings={key: {"sequence": True} for key in ("tensor", "shard x tensor") if sequence},
        under=("tensor", "shard x tensor"),
    )
    for row, (name, options, sequence) in OF_TENSOR.items()
}


def staged(task: Callable[[], LightningModule], cell: Cell | None = None, **options: Any) -> Case:
    """A row of a task whose layers are cut into stages."""
    under = options.pop("under", ("pipeline",))
    given = cells(under, cell) if cell else {}
    return Case(task, small_data, None, given, under=under, **options)


def stages_of(network: Callable[[], Any], cell: Cell | None = None, **options: Any) -> Case:
    """A row of a network that is cut into stages."""
    return staged(partial(stages.Of, network), cell, **options)


def blocks_called(way: Callable[..., Any], words: str) -> Case:
    """A row of blocks that are no chain."""
    return staged(partial(stages.Otherwise, way), rejected(words))


def between(code: Callable[..., Any]) -> Case:
    """A row of a network with code between its modules."""
    return staged(partial(stages.Between, code), rejected("has no sequence of layers: "))


SPLIT = dict.fromkeys(("pipeline",), GPIPE["pipeline"]) if too_old(PASSED_ON) else {}
BY_SCHEDULES = ("pipeline",) if SPLIT else ("pipeline", *SCHEDULES)
ONE_BY_ONE = BY_GPIPE["pipeline"]
ON_A_MESH = {"pipeline x tensor": {"plan": {"*.pass_on": "colwise_gather"}}}
OF_STAGES = {
    "two calls of a network in a step": staged(
        stages.TwoViews, rejected("calls its network more than once; use Pipeline(schedule='gpipe'")
    ),
    "the same, schedule=gpipe": staged(stages.TwoViews, settings=GPIPE),
    "a loss that is a module": staged(stages.ModuleOfLoss),
    "a method `loss` that takes something else": staged(stages.OtherLoss),
    "inputs moved along their own gradients": staged(stages.Attacked, ONE_BY_ONE),
    "two backward passes over the same outputs": staged(stages.TwoBackwards),
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
    "code between layers, in training alone": staged(stages.Noisy, ANOTHER_WAY),
    "a weight that is used twice on a stage": stages_of(
        stages.weight_used_twice, settings={"pipeline": {"balance": [4, 2]}}
    ),
    "weights and buffers with several names": staged(stages.Tied),
    "one layer without parameters between all others": staged(
        stages.OneActivation, under=("pipeline, split backward",)
    ),
    "layers that pass tuples": stages_of(stages.tuples, settings={"pipeline": {"balance": [2, 5]}}),
    "layers that return a tuple of one": stages_of(
        stages.tuple_of_one, rejected("returns a tuple of one tensor; return the tensor itself")
    ),
    "a layer with a generator": stages_of(stages.one_generator),
    "BatchNorm, in micro-batches of at least two samples": stages_of(
        stages.normalized,
        differs(result.BATCHNORM),
        settings={"pipeline": {"microbatches": 5}},
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
    "blocks that look at another network": staged(
        stages.Looks, ONE_BY_ONE, settings=ON_A_MESH, under=("pipeline", "pipeline x tensor")
    ),
    "blocks that are called in a step": staged(stages.InItsStep, ONE_BY_ONE),
    "blocks that pass on what the first has made": staged(stages.Passing, ONE_BY_ONE),
    "an encoder and a decoder": staged(stages.BothStacks, ONE_BY_ONE),
    "blocks in a dictionary, trained alone": staged(stages.Keyed, ONE_BY_ONE),
    "every other block": blocks_called(stages.skips, "does not call them one after the other"),
    "the first blocks": blocks_called(stages.stops, "calls 2 of 4 of them"),
    "blocks side by side": blocks_called(
        stages.calls_side_by_side, "calls one without what the one before has returned"
    ),
    "blocks that get a trained number": blocks_called(
        stages.gives_a_trained_number, "calls one with a tensor () that is trained and of no sample"
    ),
    "what leaves every block": blocks_called(stages.collects, "in another way than by calling net"),
    "blocks that get an object": blocks_called(
        stages.caches,
        "calls one with a OwnCache (give generate use_cache=False); return the layers",
    ),
    "blocks that explain what others leave over": staged(
        stages.OfResiduals,
        rejected("forward uses what passes between them, or skips some (let blocks return"),
    ),
    "a U-Net": stages_of(stages.UNet, settings=SPLIT, under=BY_SCHEDULES),
    "a U-Net that is called by name in a step": staged(stages.Inline, settings=SPLIT),
    "modules of the task itself": staged(stages.OfTheTask, settings=SPLIT),
    "the network of PyTorch's MNIST example": stages_of(stages.Cnn, settings=SPLIT),
    "code between modules that branches on values": between(stages.branches),
    "code between modules that depends on the mode": between(stages.by_mode),
    "code between modules that uses a parameter": between(stages.with_a_token),
    "clipping by a hook of the task": staged(stages.Clips, under=OTHERS),
    "the norm of gradients, numbers of all samples": staged(
        stages.AsksTheStrategy, under=(*OTHERS, *MESHES)
    ),
    "gradients that are clamped one by one": staged(stages.ChangesEach),
    "the same, manual optimization": staged(stages.ChangesByHand),
    "gradients that are scaled by their norm by hand": staged(
        stages.ScalesByHand,
        rejected("what passes between them, or their parameters or gradients, in another way"),
    ),
    "gradients that are added up in place": staged(
        stages.SumsUpInPlace, rejected("on_before_optimizer_step (stages.py:")
    ),
    "a teacher that is the network after each step": staged(
        stages.WithTeacher, rejected("for an average of weights")
    ),
    "a state that is loaded again": staged(stages.GoesBack),
    "an optimizer whose state is made before a step": other(
        partial(others.Own, stages.Prepared), cells=OWN_OPTIMIZER, under=("pipeline",)
    ),
}
SECTIONS = {
    "Data": OF_DATA,
    "Steps, losses and optimizers": OF_STEPS,
    "Tasks as others write them": OF_OTHERS,
    "Stages": OF_STAGES,
}
CASES = {name: case for rows in SECTIONS.values() for name, case in rows.items()}
