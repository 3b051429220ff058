"""Optimizers of a rank: they know all parameters, and have gradients of their own layers alone."""

from collections.abc import Iterable

from torch.optim import LBFGS, Optimizer

from ...errors import UserError


def refuse_whole(optimizers: Iterable[Optimizer]) -> None:
    """Refuse LBFGS, which takes all parameters as one vector.

    Raises:
        UserError: If it is among them.
    """
    if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
        raise UserError(
            "strategy=pipeline: LBFGS updates a weight by the gradients of all others, of which a "
            "rank has only those of its layers; use another optimizer, such as AdamW, or "
            "strategy=ddp"
        )


def forget_elsewhere(optimizers: Iterable[Optimizer]) -> None:
    """Drop what some prepare before the first step, as Adagrad does, for other ranks' parameters.

    These have no memory here, and so has that.
    """
    for optimizer in optimizers:
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
