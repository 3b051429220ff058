"""`strategy=dp`: one process, several devices; each call of `forward` splits its batch over them.

The task's step sees the full batch: loss, logs and metrics are computed once, from the concatenated
outputs of all devices. Without a GPU the parts go through the network one after the other.

Exact: the loss curve of `single`, to float tolerance, for every number of devices and every batch
size. Not exact: BatchNorm (statistics of each part; on GPUs the first part's are kept), dropout
(each GPU draws its own masks).
Requires: the first dimension of every tensor that `forward` takes or returns is the batch; else one
device computes all, and a line says so.
Slower than `ddp`: the network is copied to every GPU in every step. Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parallel import parallel_apply, replicate

from ..compat.of_lightning import set_device_of
from ..compat.of_torch import tensor_leaves, tree_map, tree_map_only
from ..compat.patches import replaced
from ..errors import UserError, say
from .batchnorm import report_statistics
from .single import Single
from .step import StepContext

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class DP(Single):
    """Data parallelism in one process, over `trainer.devices` devices or parts."""

    name = "dp"
    _reports_first: bool = True
    # Why a batch was not split, once it has been said.
    _reported: str = ""
    _calls: int = 0

    def _call_task(self, context: StepContext, *args: Any) -> Any:
        """Run a step of the task with `forward` split over the devices.

        The first training step reports if nothing was split, or BatchNorm's batch was.
        """
        module = self._connected_module
        self._calls = 0
        with replaced(module, "forward", self._split_forward(module, context.batch.samples)):
            output = super()._call_task(context, *args)
        if context.name == "training_step" and self._reports_first:
            self._reports_first = False
            if not self._calls:
                self._report(
                    f"{context.name} of {type(module).__name__} does not call self(inputs)"
                )
            if not self._reported and len(self.parallel_devices or ()) > 1:
                report_statistics(module, "dp", "each part of a batch")
        return output

    def _split_forward(self, module: LightningModule, samples: int | None) -> Callable[..., Any]:
        devices = self.parallel_devices or [self.root_device]
        full = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            if why := cannot_split((args, kwargs), samples):
                self._report(why)
                return full(*args, **kwargs)
            parts = split((args, kwargs), len(devices))
            if self.root_device.type == "cuda":
                outputs = _on_replicas(module, parts, devices[: len(parts)])
            else:
                outputs = [full(*args, **kwargs) for args, kwargs in parts]
            return joined(outputs)

        return forward

    def _report(self, why: str) -> None:
        if not self._reported:
            self._reported = why
            say(f"strategy=dp: {why}, so one device computes the full batch; use strategy=ddp")


def cannot_split(arguments: Arguments, samples: int | None) -> str:
    """Why the batch of a call cannot be told from its tensors' shapes; "" if it can."""
    tensors = tensor_leaves(arguments)
    if not tensors:
        return "forward takes no tensors to split"
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    if len({tensor.shape[:1] for tensor in tensors}) > 1 or not tensors[0].ndim:
        return f"forward takes tensors of different first dimensions, {shapes}"
    for tensor in tensors:
        # Features of a table may be as many as its rows; tokens may come before samples.
        may_be_second = tensor.ndim > 2 or (tensor.ndim == 2 and not tensor.is_floating_point())
        if may_be_second and tensor.shape[1] == samples:
            return f"forward takes {shapes}, and samples ({samples}) may be the second dimension"
    return ""


def split(arguments: Arguments, count: int) -> list[Arguments]:
    """Split every tensor among the arguments of a call into `count` parts along dimension 0.

    Every part gets the other arguments too. A batch of fewer samples makes fewer parts.
    """
    count = max(1, min(count, len(tensor_leaves(arguments)[0])))

    def part(number: int) -> Any:
        return tree_map_only(Tensor, lambda each: each.tensor_split(count)[number], arguments)

    return [part(number) for number in range(count)]


def joined(outputs: list[Any]) -> Any:
    """Concatenate the outputs of the parts, tensor by tensor, on the first part's device.

    Raises:
        UserError: If an output has no batch dimension.
    """

    def join(*tensors: Any) -> Any:
        first = tensors[0]
        if not isinstance(first, Tensor):
            return first
        if first.ndim == 0:
            raise UserError(
                "strategy=dp: forward returned a number for the whole batch; return one for each "
                "sample and take the mean in the step, or use strategy=ddp"
            )
        return torch.cat([tensor.to(first.device) for tensor in tensors])

    return tree_map(join, *outputs)


def _on_replicas(
    module: LightningModule, parts: list[Arguments], devices: list[torch.device]
) -> list[Any]:
    """Run each part on a copy of the task on its device, in threads."""
    if len(devices) == 1:
        args, kwargs = parts[0]
        return [type(module).forward(module, *args, **kwargs)]
    replicas: list[Any] = replicate(module, devices, detach=not torch.is_grad_enabled())
    for replica, device in zip(replicas, devices, strict=True):
        vars(replica).pop("forward", None)  # of this strategy: a part is not split again
        set_device_of(replica, device=device)
    moved = [move_data_to_device(part, device) for part, device in zip(parts, devices, strict=True)]
    # `forward` itself: hooks of the task have seen the call of the full batch.
    forwards = [replica.forward for replica in replicas]
    return parallel_apply(
        forwards, [args for args, _ in moved], [kwargs for _, kwargs in moved], devices
    )
