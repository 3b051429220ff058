"""Consecutive layers on each rank; micro-batches pass through them.

PyTorch's own schedules do the work (`torch.distributed.pipelining`). The task's steps run on every
rank: where they call `forward`, the pipeline runs instead and every rank gets the last stage's
outputs; so loss, metrics and logs are those of the whole batch, everywhere.

Exact: the loss curve of `single`, to float tolerance, for every schedule, batch size, number of
micro-batches and of replicas, with accumulation, clipping and frozen layers. Not exact: BatchNorm
(statistics of each micro-batch) and other buffers that a forward pass changes, which are announced;
dropout (each stage draws its own masks).
Refuses: what breaks the rules in `checks.py`, in any batch; what needs the gradients of all ranks.
Where ranks share the parameters of a stage, FSDP2 averages its gradients after the last
micro-batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from ...errors import UserError
from ..redirect import forward_replaced
from .elsewhere import watch_hooks
from .gradients import agree_on_overflow, average
from .loss_check import no_other_parameters
from .optimizers import check_optimizers, forget_elsewhere
from .stages_per_rank import StagesPerRank


class Pipelined(StagesPerRank):
    """Every rank with layers of its own, or with its shard of their parameters."""

    _accumulating: bool = False

    def model_to_device(self) -> None:
        """Take this rank's stages; `forward` goes through all of them."""
        super().model_to_device()
        self._connected_module.forward = self._forward  # type: ignore[method-assign]

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Build the optimizers, and refuse what needs the gradients of all ranks."""
        super().setup_optimizers(trainer)
        if self.sizes.pipeline > 1:
            check_optimizers(self.optimizers)
            forget_elsewhere(self.optimizers)
            watch_hooks(trainer)

    # Steps

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task; its call of `forward` goes through the pipeline.

        Raises:
            UserError: If a training step calls `forward` not exactly once, or computes another
                loss than ``loss(outputs, targets)``.
        """
        module = self._connected_module
        fit = name == "training_step"
        targets = self._targets() if fit else None
        # Read once: on a GPU it has to be waited for.
        scale = self._loss_scale if fit else 1.0
        calls: list[Tensor] = []

        def forward(*inputs: Tensor) -> Any:
            if calls:
                raise UserError(
                    f"strategy=pipeline: {name} calls forward more than once; call it once with "
                    "the whole batch, or use strategy=fsdp"
                )
            outputs, losses = self.passes.train(inputs, targets, scale * self._weight)
            calls.append(losses)
            return outputs[0] if len(outputs) == 1 else outputs

        if not fit:
            with no_other_parameters(module):
                return super().task_step(name, *args)
        with forward_replaced(module, forward), no_other_parameters(module):
            result = super().task_step(name, *args)
        loss = result["loss"] if isinstance(result, dict) else result
        if not calls or not isinstance(loss, Tensor):
            raise UserError(
                "strategy=pipeline: training_step must call self(inputs) and return the loss; "
                "change it, or use strategy=fsdp"
            )
        self.loss_check.compare(loss, calls[0])
        attached = self.passes.stash.attach(loss, scale)
        return {**result, "loss": attached} if isinstance(result, dict) else attached

    def weighed(self, loss: Tensor, weight: float) -> Tensor:
        """Its gradients are weighed already: FSDP2 averages them within the schedule."""
        return loss + loss.detach() * (weight - 1)

    def _targets(self) -> Any:
        if self._prepared is None:
            raise UserError(
                "strategy=pipeline: a batch must be (inputs, targets), so that loss(outputs, "
                "targets) can be computed micro-batch by micro-batch; add a method prepare(batch) "
                "to the task that returns such a pair, or use strategy=fsdp"
            )
        return self._prepared.targets

    @torch.no_grad()
    def _forward(self, *inputs: Tensor) -> Any:
        """What the task's `forward` does outside of training: any number of times, on all ranks."""
        outputs = self.passes.run(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """As `LayersPerRank` collects it; nothing is saved that was trained on another loss."""
        if self.placement is not None:
            self.loss_check.read()
        return super().lightning_module_state_dict()

    def on_train_end(self) -> None:
        """The last steps have been checked, too."""
        self.loss_check.read()
        super().on_train_end()

    def whole_forward(self, inputs: Any) -> None:
        """Without micro-batches."""
        self.passes.run((inputs,), chunks=1)

    @property
    def _loss_scale(self) -> float:
        """What 16-bit training multiplies the loss by: the schedule must do so, too."""
        scaler = self._scaler
        return float(scaler.get_scale()) if scaler is not None else 1.0

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        precision = self.precision_plugin
        return precision.scaler if isinstance(precision, MixedPrecision) else None

    # Gradients across replicas

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lightning enters this for a batch that is only accumulated."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def average_gradients(self) -> None:
        """Average over the replicas, once for all accumulated batches.

        Within the backward pass, as DistributedDataParallel does: `on_after_backward` follows.
        """
        if self._accumulating:
            return
        gradients = [p.grad for p in self.passes.stash.parameters if p.grad is not None]
        if self.sizes.replicate > 1 and not self.cuts_parameters:
            average(gradients, cast(Group, self.samples_group))
        if self._scaler is not None:
            agree_on_overflow(gradients, self.root_device)

    def teardown(self) -> None:
        """Release the device; Lightning's own would move parameters that have no memory."""
        self.let_go()
        _optimizers_to_device(self.optimizers, torch.device("cpu"))
        self._move(self._connected_module, torch.device("cpu"))
        vars(self._connected_module).pop("forward", None)
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
