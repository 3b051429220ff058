"""All micro-batches forward through the stages, and all of them backward when autograd says so.

This is GPipe (Huang et al. 2019, arXiv:1811.06965) with the task's own loss between its halves:
what a step makes of the network's outputs, how often it calls the network, and what it takes a
gradient of are the task's affair. PyTorch's schedules take the loss of each micro-batch within, so
they have to be given it (`schedule.py`); they cannot pause there.

Sending and receiving are operations of autograd. A number without meaning, the token, connects
those of a rank, so that a backward pass goes through all of them on every rank:

    first rank   inputs ─ Enter ─ stage ─ Send ── token ── Leave ─ outputs
    last rank    inputs ─ Enter ─ token ─ Receive ─ stage ─ Leave ─ outputs
                                             └───── token ─────┘

Autograd runs what was made last first: on all ranks the last micro-batch's backward pass is the
first. Each micro-batch passes through all of a rank's stages before the next one: with one stage a
rank the ranks work at the same time, with several they wait for each other. Any layout of stages
will do, and a batch of any size.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ...errors import UserError
from .partition import Stages
from .shapes import Tensors, as_tuple, empty

Sent = list[tuple[Any, Tensor]]
"""Messages that are being sent, and their data, which must not be freed meanwhile."""


def through_stages(stages: Stages, inputs: Tensors, chunks: int) -> Tensors:
    """Pass a batch through all stages in micro-batches, whose sizes may differ by one.

    Returns:
        On every rank the network's outputs, which gradients pass back through.
    """
    owner, rank = stages.owner, stages.ranks.coordinates.pipeline
    is_trained = any(stages.trained()) or any(value.requires_grad for value in inputs)
    trains = torch.is_grad_enabled() and is_trained
    with torch.set_grad_enabled(trains):
        # Ranks whose own part is frozen take part in the backward pass all the same.
        leaf = torch.ones((), device=stages.ranks.device, requires_grad=trains)
        wanted = [value for value in inputs if value.requires_grad]
        returned: Sent = []
        token, *entered = _Enter.apply(stages, returned, leaf, *wanted)
        of_inputs = iter(entered)
        first = [next(of_inputs) if value.requires_grad else value for value in inputs]
        sent: Sent = []
        tokens: list[Tensor] = [token]
        results: list[Tensor] = []
        parts = zip(*(value.tensor_split(chunks) for value in first), strict=True)
        for number, microbatch in enumerate(parts):
            left = microbatch
            for index, stage in sorted(stages.modules.items()):
                if index > 0 and owner[index - 1] != rank:
                    shapes = stages.boundary(microbatch, index)
                    source = owner[index - 1]
                    received, *left = _Receive.apply(stages, shapes, source, returned, token)
                    tokens.append(received)
                left = as_tuple(stage(*left))
                if isinstance(stage, FSDPModule):
                    _end_with(stage, left, number == 0)
                if index == stages.last:
                    results += left
                elif owner[index + 1] != rank:
                    tokens.append(_Send.apply(stages, owner[index + 1], sent, *left))
        _wait(sent)
        outputs: Tensors = _Leave.apply(stages, inputs, len(tokens), chunks, *tokens, *results)
    if stages.ranks.sizes.shares_layers and not trains:
        from ..fsdp.sharding import reshard

        for stage in stages.modules.values():
            reshard(stage)
    return outputs


def _end_with(stage: FSDPModule, left: Tensors, ends: bool) -> None:
    """Average the gradients of a stage in the last backward pass, that of the first micro-batch."""

    def decide(_: Tensor) -> None:
        stage.set_requires_gradient_sync(ends)
        # Ranks that share a stage may have different numbers of micro-batches: gather once.
        stage.set_reshard_after_backward(ends)

    for value in left:
        if value.requires_grad:
            value.register_hook(decide)  # type: ignore[no-untyped-call]


class _Enter(torch.autograd.Function):
    """Returns the token and the inputs that require a gradient, which every rank gets."""

    @staticmethod
    def forward(ctx: Any, stages: Stages, returned: Sent, leaf: Tensor, *inputs: Tensor) -> Tensors:
        ctx.stages, ctx.returned, ctx.shapes = stages, returned, [empty(v, "meta") for v in inputs]
        return leaf.clone(), *(value.view_as(value) for value in inputs)

    @staticmethod
    def backward(ctx: Any, _: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _wait(ctx.returned)
        if 0 not in ctx.stages.modules:
            gradients = tuple(empty(shape, ctx.stages.ranks.device) for shape in ctx.shapes)
        shared = ctx.stages.share(tuple(map(Tensor.contiguous, gradients)), stage=0)
        return None, None, None, *shared


class _Send(torch.autograd.Function):
    """Sends outputs to the next stage, and receives their gradients; returns a token."""

    @staticmethod
    def forward(ctx: Any, stages: Stages, target: int, sent: Sent, *left: Tensor) -> Tensor:
        _send(stages, left, target, sent)
        ctx.stages, ctx.target = stages, target
        ctx.shapes = [empty(value, "meta") if value.requires_grad else None for value in left]
        return torch.zeros((), device=stages.ranks.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            None if shape is None else _receive(ctx.stages, shape, ctx.target)
            for shape in ctx.shapes
        ]
        return None, None, None, *gradients


class _Receive(torch.autograd.Function):
    """Receives the outputs of the stage before, and sends their gradients; returns a token, too."""

    @staticmethod
    def forward(
        ctx: Any, stages: Stages, shapes: Tensors, source: int, returned: Sent, token: Tensor
    ) -> Tensors:
        ctx.stages, ctx.shapes, ctx.source, ctx.returned = stages, shapes, source, returned
        values = tuple(_receive(stages, shape, source) for shape in shapes)
        pairs = zip(values, shapes, strict=True)
        ctx.mark_non_differentiable(*(v for v, shape in pairs if not shape.requires_grad))
        return token.clone(), *values

    @staticmethod
    def backward(ctx: Any, _: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(gradients, ctx.shapes, strict=True)
        wanted = [gradient for gradient, shape in pairs if shape.requires_grad]
        _send(ctx.stages, wanted, ctx.source, ctx.returned)
        return None, None, None, None, torch.zeros((), device=ctx.stages.ranks.device)


class _Leave(torch.autograd.Function):
    """Takes tokens, and on the last rank the outputs of each micro-batch; returns all outputs."""

    @staticmethod
    def forward(
        ctx: Any, stages: Stages, inputs: Tensors, tokens: int, chunks: int, *left: Tensor
    ) -> Tensors:
        ctx.save_for_backward(left[0])
        pieces = left[tokens:]
        count = len(pieces) // chunks
        columns = [pieces[column::count] for column in range(count)]
        ctx.tokens = tokens
        ctx.sizes = [[len(piece) for piece in column] for column in columns if chunks > 1]
        joined = [torch.cat(each) if chunks > 1 else each[0].clone() for each in columns]
        outputs = stages.share_outputs(tuple(joined), inputs)
        ctx.is_last = bool(pieces)
        ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UserError(
                "strategy=pipeline: a gradient that is to be differentiated once more "
                "(create_graph=True) does not pass through stages; use strategy=ddp"
            )
        (token,) = ctx.saved_tensors  # on all ranks an error if the graph has been freed
        pieces: Sequence[Tensor] = gradients if ctx.is_last else ()
        if ctx.sizes:
            columns = map(torch.split_with_sizes, gradients, ctx.sizes)
            pieces = [piece for microbatch in zip(*columns, strict=True) for piece in microbatch]
        of_tokens = [torch.zeros_like(token)] * ctx.tokens
        return None, None, None, None, *of_tokens, *pieces


def _receive(stages: Stages, shape: Tensor, source: int) -> Tensor:
    value = empty(shape, stages.ranks.device)
    dist.recv(value, group=stages.ranks.pipeline_group, group_src=source)
    return value


def _send(stages: Stages, values: Sequence[Tensor], target: int, under_way: Sent) -> None:
    for value in values:
        ready = value.detach().contiguous()
        under_way.append(
            (dist.isend(ready, group=stages.ranks.pipeline_group, group_dst=target), ready)
        )


def _wait(under_way: Sent) -> None:
    for work, _ in under_way:
        if work is not None:
            work.wait()
    under_way.clear()
