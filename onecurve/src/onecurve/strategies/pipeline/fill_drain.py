"""All micro-batches forward through the stages, and all of them backward when autograd says so.

This is GPipe (Huang et al. 2019, arXiv:1811.06965) with the task's own loss between its halves:
what a step makes of the network's outputs, how often it calls the network, and what it takes a
gradient of are the task's affair. PyTorch's schedules take the loss of each micro-batch within, so
they have to be given it (`schedule.py`); they cannot pause there.

    step of the task   x ──> forward passes ──> outputs ──> loss
    loss.backward()    x.grad <── backward passes <── gradient of the outputs

Each micro-batch passes through all of a rank's stages before the next one: with one stage a rank
the ranks work at the same time, with several they wait for each other. Any layout of stages will
do, and a batch of any size.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from .placement import Stages
from .stage import Tensors, as_tuple

Sent = tuple[Any, Tensor]


class Kept(NamedTuple):
    """What the backward pass of one micro-batch through one stage needs."""

    stage: int
    entered: Tensors
    left: Tensors


class FillDrain:
    """Passes batches through the stages of a pipeline, of which this rank has some."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages.modules
        self.owner = stages.owner
        self.boundary = stages.boundary
        self.group = stages.group
        self.device = stages.device
        self.rank = dist.get_rank(self.group)
        self.last = len(self.owner) - 1

    def forward(self, inputs: Tensors, chunks: int) -> tuple[Tensors, list[list[Kept]]]:
        """Pass a batch through all stages.

        Args:
            inputs: What enters the network. With gradients enabled, one is computed for those that
                require it.
            chunks: Number of micro-batches of the first dimension; sizes may differ by one.

        Returns:
            On the rank with the last stage the outputs for the whole batch, else nothing; and for
            each micro-batch what `backward` needs.
        """
        results: list[Tensors] = []
        kept: list[list[Kept]] = []
        sent: list[Sent] = []
        for microbatch in zip(*(value.tensor_split(chunks) for value in inputs), strict=True):
            first = tuple(
                part.detach().requires_grad_(whole.requires_grad)
                for part, whole in zip(microbatch, inputs, strict=True)
            )
            passed: list[Kept] = []
            for index, stage in sorted(self.stages.items()):
                if index == 0:
                    entered = first
                elif self.owner[index - 1] == self.rank:
                    left = passed[-1].left
                    entered = tuple(v.detach().requires_grad_(v.requires_grad) for v in left)
                else:
                    entered = self._receive(self.boundary(first, index), self.owner[index - 1])
                passed.append(Kept(index, entered, as_tuple(stage(*entered))))
                if index == self.last:
                    results.append(tuple(value.detach() for value in passed[-1].left))
                elif self.owner[index + 1] != self.rank:
                    sent += self._send(passed[-1].left, self.owner[index + 1])
            kept.append(passed if torch.is_grad_enabled() else [])
        _wait(sent)
        if len(results) == 1:
            return results[0], kept
        return tuple(torch.cat(pieces) for pieces in zip(*results, strict=True)), kept

    def backward(
        self, kept: list[list[Kept]], gradients: Sequence[Tensor], retain_graph: bool
    ) -> tuple[Tensors, dict[Tensor, Tensor]]:
        """Pass the gradients of the outputs back through all stages.

        Args:
            kept: What `forward` returned.
            gradients: Of the outputs for the whole batch; used on the rank with the last stage.
            retain_graph: Whether there will be another pass over the same.

        Returns:
            On the rank with the first stage the gradients of what entered and requires one, for
            the whole batch; and the gradients of this rank's parameters. Those that FSDP2 has
            sharded are in their ``.grad`` instead, averaged after the last micro-batch.
        """
        of_inputs: list[Tensors] = []
        total: dict[Tensor, Tensor] = {}
        sent: list[Sent] = []
        pieces = self._pieces(kept, gradients)
        for number, passed in enumerate(kept):
            handed_back: Tensors = ()
            for stage, entered, left in reversed(passed):
                wants = tuple(value for value in left if value.requires_grad)
                if stage == self.last:
                    incoming = pieces[number]
                elif self.owner[stage + 1] == self.rank:
                    incoming = handed_back
                else:
                    incoming = self._receive(wants, self.owner[stage + 1])
                ends = number == len(kept) - 1
                module = self.stages[stage]
                handed_back = _of_stage(module, entered, wants, incoming, total, ends, retain_graph)
                if stage == 0:
                    of_inputs.append(handed_back)
                elif self.owner[stage - 1] != self.rank:
                    sent += self._send(handed_back, self.owner[stage - 1])
            if not retain_graph:
                passed.clear()
        _wait(sent)
        return tuple(torch.cat(parts) for parts in zip(*of_inputs, strict=True)), total

    def _pieces(self, kept: list[list[Kept]], gradients: Sequence[Tensor]) -> list[Tensors]:
        """On the rank with the last stage, for each micro-batch the gradients that it wants."""
        if self.last not in self.stages:
            return []
        outputs = [passed[-1].left for passed in kept]
        columns: list[Sequence[Tensor]]
        if len(outputs) == 1:
            columns = [(gradient,) for gradient in gradients]
        else:
            columns = [
                gradient.split_with_sizes([len(left[column]) for left in outputs])
                for column, gradient in enumerate(gradients)
            ]
        return [
            tuple(column[i] for column, v in zip(columns, left, strict=True) if v.requires_grad)
            for i, left in enumerate(outputs)
        ]

    def _receive(self, shapes: Tensors, source: int) -> Tensors:
        values = tuple(
            torch.empty(shape.shape, dtype=shape.dtype, device=self.device) for shape in shapes
        )
        for value, shape in zip(values, shapes, strict=True):
            dist.recv(value, group=self.group, group_src=source)
            value.requires_grad_(shape.requires_grad and torch.is_grad_enabled())
        return values

    def _send(self, values: Tensors, target: int) -> list[Sent]:
        # What is under way must not be freed.
        ready = [value.detach().contiguous() for value in values]
        return [(dist.isend(value, group=self.group, group_dst=target), value) for value in ready]


def _of_stage(
    stage: nn.Module,
    entered: Tensors,
    left: Tensors,
    incoming: Tensors,
    total: dict[Tensor, Tensor],
    ends: bool,
    retain_graph: bool,
) -> Tensors:
    """The gradients of what entered a stage; those of its parameters are added to the total."""
    wanted = [value for value in entered if value.requires_grad]
    found: list[Tensor | None] = [None] * len(wanted)
    if left and isinstance(stage, FSDPModule):
        stage.set_requires_gradient_sync(ends)
        # Ranks that share a stage may have different numbers of micro-batches: gather once.
        stage.set_reshard_after_backward(ends)
        for value in wanted:
            value.grad = None
        torch.autograd.backward(left, incoming, retain_graph=retain_graph)
        found = [value.grad for value in wanted]
    elif left:
        trained = [weight for weight in stage.parameters() if weight.requires_grad]
        found = list(
            torch.autograd.grad(
                left, [*wanted, *trained], incoming, retain_graph=retain_graph, allow_unused=True
            )
        )
        for weight, gradient in zip(trained, found[len(wanted) :], strict=True):
            if gradient is not None:
                before = total.get(weight)
                total[weight] = gradient if before is None else before + gradient
    return tuple(
        torch.zeros_like(value) if gradient is None else gradient
        for value, gradient in zip(wanted, found, strict=False)
    )


def _wait(sent: list[Sent]) -> None:
    for work, _ in sent:
        if work is not None:
            work.wait()


def order(owner: Sequence[int], chunks: int) -> dict[int, list[Any]]:
    """For each rank what it computes in which order, as `pipeline_order` of PyTorch's schedules."""
    found: dict[int, list[Any]] = {rank: [] for rank in set(owner)}
    for kind, stages in (("F", range(len(owner))), ("B", range(len(owner) - 1, -1, -1))):
        for number in range(chunks):
            for stage in stages:
                action = SimpleNamespace(
                    computation_type=SimpleNamespace(value=kind),
                    stage_index=stage,
                    microbatch_index=number,
                )
                found[owner[stage]].append(action)
    return found
