"""What a task gives to its network: taken from the first batch, before training starts."""

from inspect import Parameter, signature
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from ..batch.loader import kept_generators
from ..batch.random import kept_state
from ..batch.resume import Waiting
from ..batch.share import SharedLoader
from .logging_together import log_replaced
from .redirect import forward_replaced


class _Reached(BaseException):
    """Ends a step as soon as it has called `forward`."""

    def __init__(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.inputs = inputs
        self.options = options


def first_inputs(trainer: Trainer) -> tuple[Tensor, ...] | None:
    """The tensors that the task's step passes to `forward` for the first batch, on the device.

    Nothing is consumed: neither samples nor random numbers. All ranks call this.

    Returns:
        None if the step does not call `forward`, or not with tensors by position alone, or may
        train something before it does.
    """
    module = trainer.lightning_module
    if trainer.state.fn == TrainerFn.FITTING and not module.automatic_optimization:
        return None
    name = STEPS[trainer.state.fn]  # type: ignore[index]
    step = getattr(module, name)
    parameters = signature(step).parameters
    # As it would be asked for later; what follows is as if it had not been.
    _loop(trainer).setup_data()
    with kept_state():
        batch = _first_batch(trainer)
        positional = [p for p in parameters.values() if p.kind in BY_POSITION]
        numbers = [0 for _ in positional[1:3]]
        silent = log_replaced(module, lambda *args, **kwargs: None)
        try:
            with silent, forward_replaced(module, _reach), torch.no_grad():
                step(batch, *numbers)
        except _Reached as reached:
            tensors = all(isinstance(value, Tensor) for value in reached.inputs)
            if tensors and reached.inputs and not reached.options:
                return tuple(value.detach() for value in reached.inputs)
    return None


# As Lightning passes the batch, its index and that of its loader, whatever they are called.
BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
STEPS = {
    TrainerFn.FITTING: "training_step",
    TrainerFn.VALIDATING: "validation_step",
    TrainerFn.TESTING: "test_step",
    TrainerFn.PREDICTING: "predict_step",
}


def _reach(*inputs: Any, **options: Any) -> None:
    raise _Reached(inputs, options)


def _loop(trainer: Trainer) -> Any:
    return {
        TrainerFn.FITTING: trainer.fit_loop,
        TrainerFn.VALIDATING: trainer.validate_loop,
        TrainerFn.TESTING: trainer.test_loop,
        TrainerFn.PREDICTING: trainer.predict_loop,
    }[trainer.state.fn]  # type: ignore[index]


def _first_batch(trainer: Trainer) -> Any:
    loop = _loop(trainer)
    assert loop._combined_loader is not None
    combined = loop._combined_loader
    if trainer.state.fn == TrainerFn.FITTING:
        # One of each loader.
        first = tree_unflatten([_first_of(loader) for loader in combined.flattened], combined._spec)
    else:
        first = _first_of(combined.flattened[0])
    module = trainer.lightning_module
    batch = trainer.precision_plugin.convert_input(first)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _first_of(loader: Any) -> Any:
    if isinstance(loader, Waiting):
        loader = loader.loader
    if isinstance(loader, SharedLoader):
        return loader.first()
    with kept_generators(loader):
        return next(iter(loader))
