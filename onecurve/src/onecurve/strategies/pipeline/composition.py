"""How layers are called one after the other, and whether that is what `forward` does."""

from inspect import Parameter, signature
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ...errors import UserError, in_short
from ..trial import outcome, same, set_modes
from .checks import INSTEAD

Tensors = tuple[Tensor, ...]


def call_layer(layer: nn.Module, inputs: Tensors) -> Any:
    """Call a layer with what the one before it returned.

    Several tensors become its arguments; where it takes one argument they are that, a tuple, as
    nn.Sequential passes it on.
    """
    return layer(inputs) if len(inputs) > 1 and _takes_one(layer) else layer(*inputs)


def run_layers(layers: list[nn.Module], inputs: Tensors) -> Any:
    """Pass tensors through layers, one after the other."""
    outputs: Any = inputs
    for layer in layers:
        outputs = call_layer(layer, outputs if isinstance(outputs, tuple) else (outputs,))
    return outputs


def _takes_one(layer: nn.Module) -> bool:
    kinds = [parameter.kind for parameter in signature(layer.forward).parameters.values()]
    named = [kind for kind in kinds if kind in NAMED]
    return len(named) == 1 and Parameter.VAR_POSITIONAL not in kinds


NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_composition(
    module: LightningModule, layers: dict[str, nn.Module], inputs: Tensors
) -> list[str]:
    """Compare `forward` with its layers one after the other, for two samples.

    In evaluation and in training mode, where a branch of `forward` may be another, both with the
    same random numbers; what is trained must be trained by both. No buffer and no random number
    is left changed.

    Returns:
        Names of the buffers that a pass in training mode changes.

    Raises:
        UserError: If the results differ.
    """
    name, sequence = type(module).__name__, list(layers.values())
    # Of a single sample BatchNorm can take no statistics.
    samples = tuple(torch.cat([value[:2], value[:2]])[:2].cpu() for value in inputs)
    modes = {part: part.training for part in module.modules()}
    try:
        for mode in ("evaluation", "training"):
            set_modes(dict.fromkeys(modes, False) if mode == "evaluation" else modes)
            whole, trains, changed = outcome(module.forward, samples, module)
            composed, also, _ = outcome(lambda *given: run_layers(sequence, given), samples, module)
            if isinstance(whole, tuple) and len(whole) == 1:
                raise UserError(
                    f"strategy=pipeline: {name}.forward returns a tuple of one tensor; return the "
                    "tensor itself, or use strategy=fsdp"
                )
            if not same(whole, composed) or trains != also:
                raise UserError(
                    f"strategy=pipeline: in {mode} mode {name}.forward gives something else than "
                    f"its layers {', '.join(layers)} one after the other; {INSTEAD}"
                )
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"strategy=pipeline: {name}.forward is not the composition of its layers "
            f"{', '.join(layers)} ({in_short(error)}); {INSTEAD}"
        ) from error
    finally:
        set_modes(modes)
    return changed
