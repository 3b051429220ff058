"""Embeddings and heads of a vocabulary that ranks share.

Within a step of the task, `cut_logits`, the logits of such a head stay cut: each rank has those of
its entries, and no rank ever all of them. They pass through a task as any tensor does: the cross
entropy, `argmax`, and what leaves the entries where they are work on pieces; anything else, such as
a metric that wants to see all of them, gets them put together first. Every rank of the group must
do alike, as in a step of a task it does. Outside of a step a head makes whole logits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import logits_functions as logits_functions
from .attention import local
from .collectives import Group, joined, summed
from .logits import wrapped

STAY_CUT = ContextVar("STAY_CUT", default=False)


@contextmanager
def cut_logits() -> Iterator[None]:
    """For a step of the task: logits of heads in the style `vocab` stay cut meanwhile."""
    token = STAY_CUT.set(True)
    try:
        yield
    finally:
        STAY_CUT.reset(token)


def cut_embedding(layer: nn.Embedding, group: Group, indices: Tensor) -> Tensor:
    """As ``layer.forward``: each rank looks up what it has, the sum has all."""
    weight = local(layer.weight)
    first = group.rank * len(weight)
    elsewhere = (indices < first) | (indices >= first + len(weight))
    padding = layer.padding_idx
    if padding is not None:
        padding = padding - first if first <= padding < first + len(weight) else None
    found = F.embedding((indices - first).masked_fill(elsewhere, 0), weight, padding)
    return summed(group, found.masked_fill(elsewhere.unsqueeze(-1), 0))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it cannot trace CutLogits
def leave_logits(group: Group, piece: Tensor) -> Tensor:
    """Logits (..., entries of this rank) as logits (..., entries), cut within a step."""
    if STAY_CUT.get():
        return wrapped(piece, group, piece.ndim - 1)
    return joined(group, piece, -1)
