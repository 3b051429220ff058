"""The rules that a LightningModule must keep to be pipelined, checked before training.

1. `forward` is the composition of an ordered sequence of layers; tensors or tuples of tensors pass
   between them; each parameter is in one layer.
2. ``loss(outputs, targets)`` is the mean over the batch, or over what ``weight(targets)`` says; a
   batch is ``(inputs, targets)``, or ``prepare(batch)`` makes them.
3. The steps, `configure_optimizers` and `log` are as everybody writes them (automatic
   optimization).
"""

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

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
    for method in ("loss", "training_step"):
        if "all_samples" in getattr(type(module), method).__code__.co_names:
            raise UserError(
                f"strategy=pipeline: {name}.{method} takes all_samples, to compare samples with "
                "each other, and a pipeline has them micro-batch by micro-batch; use strategy=fsdp"
            )
    known = set(module.parameters())
    for path, layer in layers.items():
        if not known.issuperset(layer.parameters()):
            raise UserError(
                f"strategy=pipeline: the layer {path} of {name} has parameters that are none of "
                f"{name}'s; make it once, in __init__, as an attribute of {name}"
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


def check_shared_tensors(layers: dict[str, nn.Module], stage_of: dict[str, int]) -> None:
    """Refuse a parameter or buffer that layers on different stages use.

    A layer without any may be used on several.

    Raises:
        UserError: Naming the two layers.
    """
    user: dict[int, str] = {}
    for name, layer in layers.items():
        for tensor in (*layer.parameters(), *layer.buffers()):
            other = user.setdefault(id(tensor), name)
            if stage_of[other] != stage_of[name]:
                what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise UserError(
                    f"strategy=pipeline: layers {other} and {name} share a {what}, but are on "
                    f"stages {stage_of[other]} and {stage_of[name]}; give strategy.balance=[...] "
                    "that keeps them together, untie them, or use strategy=fsdp"
                )
