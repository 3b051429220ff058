"""Validation, test and prediction: micro-batches pass through the stages, forward only.

PyTorch's own `schedule.eval` cannot run V-shaped schedules and wants equal micro-batches; this loop
takes any schedule's layout and a batch of any size. Each micro-batch passes through all of a rank's
stages before the next one: with one stage a rank the ranks work at the same time, with several they
wait for each other.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]


def forward_only(
    inputs: Tensors,
    *,
    chunks: int,
    stages: dict[int, nn.Module],
    owner: Sequence[int],
    boundary: Callable[[Tensors, int], Tensors],
    group: dist.ProcessGroup,
) -> Tensors:
    """The outputs of the last stage for a whole batch; empty on ranks without that stage.

    Args:
        inputs: What enters the network: tensors whose first dimension is the batch.
        chunks: Number of micro-batches; their sizes may differ by one.
        stages: This rank's stages by index.
        owner: For each stage of the pipeline, its rank in the group.
        boundary: Given a micro-batch and a stage, tensors on the meta device with the shapes and
            types that enter that stage.
        group: The ranks of the pipeline.
    """
    device = inputs[0].device
    rank = dist.get_rank(group)
    results: list[Tensors] = []
    sent: list[tuple[dist.Work | None, Tensors]] = []
    handed_over: Tensors = ()
    for chunk in zip(*(value.chunk(chunks) for value in inputs), strict=True):
        for index, stage in sorted(stages.items()):
            if index == 0:
                current: Tensors = chunk
            elif owner[index - 1] == rank:
                current = handed_over
            else:
                shapes = boundary(chunk, index)
                current = tuple(torch.empty_like(shape, device=device) for shape in shapes)
                for value in current:
                    dist.recv(value, group=group, group_src=owner[index - 1])
            outputs = stage(*current)
            handed_over = outputs if isinstance(outputs, tuple) else (outputs,)
            if index == len(owner) - 1:
                results.append(handed_over)
            elif owner[index + 1] != rank:
                ready = tuple(value.contiguous() for value in handed_over)
                for value in ready:
                    work = dist.isend(value, group=group, group_dst=owner[index + 1])
                    # What is under way must not be freed.
                    sent.append((work, ready))
    for work, _ in sent:
        if work is not None:
            work.wait()
    return tuple(torch.cat(pieces) for pieces in zip(*results, strict=True))
