"""The rules that a LightningModule must keep to be pipelined, checked before training.

1. `forward` is the composition of an ordered sequence of layers; tensors or tuples of tensors pass
   between them; each parameter is in one layer.
2. ``loss(outputs, targets)`` is the mean over the batch; a batch is ``(inputs, targets)``.
3. The steps, `configure_optimizers` and `log` are as everybody writes them (automatic
   optimization).
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...errors import UserError
from ..first_batch import STEPS, first_inputs
from ..layers import find_layers

INSTEAD = "change it, or use strategy=fsdp"


def check_structure(module: LightningModule) -> dict[str, nn.Module]:
    """The module's layers, in order and by name.

    Raises:
        UserError: Naming the rule that the module breaks.
    """
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UserError(
            f"strategy=pipeline: {name} optimizes manually, but a schedule runs forward and "
            f"backward as one; let Lightning optimize it, or use strategy=fsdp"
        )
    layers = find_layers(module)
    if layers is None:
        raise UserError(
            f"strategy=pipeline: {name} has no sequence of layers: hold the network as one "
            f"nn.Sequential, or add a method layers() that returns its layers in order; {INSTEAD}"
        )
    if not callable(getattr(module, "loss", None)):
        raise UserError(
            f"strategy=pipeline: {name} has no method loss(outputs, targets), the mean over the "
            f"batch; add it, or use strategy=fsdp"
        )
    held = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    for path, parameter in module.named_parameters():
        if id(parameter) not in held:
            raise UserError(
                f"strategy=pipeline: the parameter {path} of {name} is in none of its layers; "
                "put it into the layer that uses it, or use strategy=fsdp"
            )
    return layers


def network_inputs(trainer: Trainer) -> tuple[Tensor, ...]:
    """What the task's step passes to `forward` for the first batch.

    Raises:
        UserError: If the step does not call `forward` with tensors.
    """
    inputs = first_inputs(trainer)
    if inputs is None:
        step = f"{type(trainer.lightning_module).__name__}.{STEPS[trainer.state.fn]}"  # type: ignore[index]
        raise UserError(
            f"strategy=pipeline: {step} must call self(inputs) with tensors by position, and "
            f"reach its network in no other way; {INSTEAD}"
        )
    return inputs


def check_shared_parameters(layers: dict[str, nn.Module], stage_of: dict[str, int]) -> None:
    """Refuse a parameter that layers on different stages use.

    Raises:
        UserError: Naming the two layers.
    """
    user: dict[int, str] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters():
            other = user.setdefault(id(parameter), name)
            if stage_of[other] != stage_of[name]:
                raise UserError(
                    f"strategy=pipeline: layers {other} and {name} share a parameter, but are on "
                    f"stages {stage_of[other]} and {stage_of[name]}; give strategy.balance=[...] "
                    "that keeps them together, untie them, or use strategy=fsdp"
                )


def check_composition(
    module: LightningModule, layers: dict[str, nn.Module], inputs: tuple[Tensor, ...]
) -> None:
    """Compare `forward` with its layers one after the other, for two samples, in evaluation mode.

    Raises:
        UserError: If the results differ.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    samples = tuple(value[:2].cpu() for value in inputs)
    try:
        with torch.no_grad():
            whole = module.forward(*samples)
            composed = run_layers(list(layers.values()), samples)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"strategy=pipeline: {type(module).__name__}.forward is not the composition of its "
            f"layers {', '.join(layers)} ({reason}); {INSTEAD}"
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    if not _same(whole, composed):
        raise UserError(
            f"strategy=pipeline: {type(module).__name__}.forward gives something else than its "
            f"layers {', '.join(layers)} one after the other; {INSTEAD}"
        )


def split_batch(batch: Any) -> Any:
    """The targets of a batch ``(inputs, targets)``.

    Raises:
        UserError: If a batch is something else.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            "strategy=pipeline: a batch must be (inputs, targets), so that loss(outputs, targets) "
            "can be computed micro-batch by micro-batch; let the data module return such pairs, "
            "or use strategy=fsdp"
        )
    return batch[1]


def run_layers(layers: list[nn.Module], inputs: Any) -> Any:
    """Pass tensors through layers; a tuple becomes the next layer's arguments."""
    for layer in layers:
        inputs = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
    return inputs


def _same(a: Any, b: Any) -> bool:
    first, second = tree_leaves(a), tree_leaves(b)
    return len(first) == len(second) and all(
        x.shape == y.shape and torch.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
        for x, y in zip(first, second, strict=True)
    )
