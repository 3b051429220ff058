"""Parameters without a dimension, such as a temperature: every rank has them in full.

FSDP2 has nothing to cut there, and is told to leave them alone. Their gradients are averaged here.
"""

import torch.distributed as dist
from torch import Tensor, nn

from ...errors import UserError


def scalars_of(module: nn.Module) -> set[nn.Parameter]:
    """The parameters of a module that have no dimension."""
    return {parameter for parameter in module.parameters() if parameter.ndim == 0}


def average_scalars(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Let their gradients be the mean over the ranks that see different samples."""

    def average(parameter: Tensor) -> None:
        # What earlier batches have accumulated is the same everywhere, and stays so.
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    for parameter in scalars_of(module):
        parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]


def refuse_scalars(module: nn.Module, strategy: str) -> None:
    """Refuse them where ranks share more than samples.

    Raises:
        UserError: That names the first.
    """
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0:
            raise UserError(
                f"strategy={strategy}: parameter {name} has no dimension to cut, which a pipeline "
                "or a context asks for; give it one, such as torch.ones(1), or use strategy=fsdp"
            )
