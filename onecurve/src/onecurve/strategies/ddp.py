"""`strategy=ddp`: one copy of the network per rank; gradients are averaged in the backward pass.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping, an uneven last batch, and BatchNorm with `trainer.sync_batchnorm=true` (else it has the
statistics of each rank's share). Not exact: dropout (each rank draws its own masks), gradients sent
in 16 bits.
Memory per rank: that of `single` plus gradient buckets. Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ..arguments import configured_by
from ..compat.of_lightning import accumulates, callbacks_of
from ..compat.of_torch import hooked, remove_hooks
from ..errors import UserError, say, some_of
from .layout import tensors_of
from .options import DDPOptions
from .strategy import OneCurve
from .unsupported import UNUSED

COMPRESSION = {
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


class DDP(OneCurve, DDPStrategy):
    """Lightning's DDPStrategy on global batches: each rank trains on its share of every batch.

    The arguments are described in `DDPOptions`; further ones are those of
    `lightning.pytorch.strategies.DDPStrategy`.
    """

    name = "ddp"

    @configured_by(DDPOptions, "strategy")
    def __init__(self, options: DDPOptions) -> None:
        super().__init__(options, {"replicate": "auto"})
        self.communication_dtype = options.communication_dtype
        self._trained: list[bool] | None = None
        self._has_seen_gradients = False

    def _register_ddp_hooks(self) -> None:
        """Register the communication hook on every device; Lightning's version skips CPUs."""
        assert isinstance(self.model, DistributedDataParallel)
        if self.communication_dtype is not None:
            self.model.register_comm_hook(None, COMPRESSION[self.communication_dtype])

    def model_to_device(self) -> None:
        """Move the task to the device, and start all ranks from the same weights.

        In a fit, DistributedDataParallel broadcasts them.
        """
        task = self._connected_module
        fits = task.trainer.state.fn == TrainerFn.FITTING
        super().model_to_device()
        if not fits:
            assert self.ranks is not None
            self.ranks.copy_first(*tensors_of([task]))

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        """Wrap the task for a fit. The wrapper fixes which parameters' gradients are averaged."""
        if self._connected_module.trainer.state.fn != TrainerFn.FITTING:
            return model
        self._trained = [parameter.requires_grad for parameter in model.parameters()]
        self._has_seen_gradients = False
        if not self._connected_module.automatic_optimization:
            # A step may run several backward passes, each for some of the parameters.
            self._ddp_kwargs["find_unused_parameters"] = True
        self.model = super()._setup_model(model)
        self._register_ddp_hooks()
        return self.model

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Wrap the task again if parameters were frozen or unfrozen since the last batch."""
        module = self._connected_module
        trained = [parameter.requires_grad for parameter in module.parameters()]
        if isinstance(self.model, DistributedDataParallel) and trained != self._trained:
            remove_hooks(self.model)
            self._setup_model(module)

    def post_backward(self, closure_loss: Tensor) -> None:
        """After the first backward pass, look for parameters without a gradient, and for hooks."""
        super().post_backward(closure_loss)
        task = self._connected_module
        if self._has_seen_gradients or accumulates(task.trainer):
            return
        self._has_seen_gradients = True
        if not self._ddp_kwargs.get("find_unused_parameters"):
            self._reject_unused(task)
        with_hooks = hooked(task)
        if with_hooks and self.is_global_zero:
            say(
                f"strategy=ddp: hooks of {some_of(with_hooks)} see the gradient of a rank's own "
                "samples, before it is averaged: a clamp, or a step of an optimizer, differs from "
                "that under strategy=single; use on_before_optimizer_step"
            )

    def _reject_unused(self, task: LightningModule) -> None:
        """Reject what DistributedDataParallel rejects in the next step, unaveraged until then.

        Where a hook may have removed gradients, as DINO does, that is left to it.
        """
        hooks = (task, *callbacks_of(task.trainer, Callback))
        trained = [(name, each) for name, each in task.named_parameters() if each.requires_grad]
        unused = [name for name, each in trained if each.grad is None]
        is_removed = any(is_overridden("on_after_backward", each) for each in hooks)
        if 0 < len(unused) < len(trained) and not is_removed:
            raise UserError(
                f"strategy=ddp: the step used only some of the parameters, not {some_of(unused)}; "
                f"{UNUSED}"
            )
