"""Splits a set of samples into parts with the same proportions of classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError


def stratified_split(labels: Tensor, held_out: Sequence[int], seed: int) -> list[Tensor]:
    """Split samples at random, class by class.

    Args:
        labels: (N,), the class of each sample.
        held_out: Number of samples in each part after the first one.
        seed: The same seed gives the same split.

    Returns:
        The indices of each part, ascending: first what remains for training, then one tensor for
        each entry of `held_out`.

    Raises:
        UserError: If nothing would remain for training, or a part would be empty.
    """
    sizes = [len(labels) - sum(held_out), *held_out]
    if min(sizes) < 1:
        parts = " + ".join(str(size) for size in held_out)
        raise UserError(
            f"data: {len(labels)} samples cannot be split into a training part and held-out parts "
            f"of {parts}: every part needs at least 1; "
            "change the split keys of data, or try data=digits"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # The k-th of a class's n samples gets the key (k + 1/2) / n. Sorted by it, every range of the
    # samples has the classes in the proportions of the full set.
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        place[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    line = order[place[order].argsort(stable=True)]
    return [part.sort().values for part in torch.split(line, sizes)]
