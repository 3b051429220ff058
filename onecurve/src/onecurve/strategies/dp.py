"""`strategy=dp`: one process, several devices; each call of `forward` splits its batch over them.

The task's step sees the full batch: loss, logs and metrics are computed once, from the concatenated
outputs of all devices. Without a GPU the parts go through the network one after the other.

Exact: the loss curve of `single`, to float tolerance, for every number of devices and every batch
size. Not exact: BatchNorm (statistics of each part; on GPUs the first part's are kept), dropout
(each GPU draws its own masks).
Requires: the first dimension of every tensor that `forward` takes or returns is the batch.
Slower than `ddp`: the network is copied to every GPU in every step. Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate

from ..compat.of_lightning import set_device
from ..compat.of_torch import tensor_leaves, tree_leaves, tree_map, tree_map_only
from ..compat.patching import replaced
from ..errors import UserError, say
from .layout import changed, report_changed
from .single import Single

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class DP(Single):
    """Data parallelism in one process, over `trainer.devices` devices or parts."""

    name = "dp"
    # The largest number of parts that a training batch has been split into so far.
    _parts: int = 0
    _has_said: bool = False
    # The buffers that parts of the first training batch have changed; None later.
    _changed: dict[str, None] | None = None

    def _call_task(self, name: str, *args: Any) -> Any:
        """Run a step of the task with `forward` split over the devices.

        The first training step reports if nothing was split, and which buffers will differ.
        """
        module = self._connected_module
        is_first = name == "training_step" and self._parts == 0
        self._changed = {} if is_first else None
        with replaced(module, "forward", self._split_forward(module)):
            output = super()._call_task(name, *args)
        if is_first and self._parts == 0:
            self._parts = 1
            say(
                f"strategy=dp: {name} of {type(module).__name__} does not call self(...), so "
                "nothing is split and one device computes all; call self(inputs) there, or use "
                "strategy=ddp"
            )
        elif is_first and self._parts > 1:
            report_changed(module, "dp", "part of a batch", list(self._changed or ()))
        return output

    def _split_forward(self, module: LightningModule) -> Callable[..., Any]:
        devices = self.parallel_devices or [self.root_device]
        whole = module.forward
        trains = module.trainer.training

        def forward(*args: Any, **kwargs: Any) -> Any:
            samples = self._step.samples if trains else None
            count = 1 if self._is_open((args, kwargs), samples) else len(devices)
            parts = split((args, kwargs), count, samples)
            if trains:
                self._parts = max(self._parts, len(parts))
            looks = self._changed is not None and len(parts) > 1
            buffers = dict(module.named_buffers()) if looks else {}
            before = {name: each.clone() for name, each in buffers.items()}
            if self.root_device.type == "cuda":
                outputs = _on_replicas(module, parts, devices[: len(parts)])
            else:
                outputs = [whole(*args, **kwargs) for args, kwargs in parts]
            if self._changed is not None:
                # What the rest of a step changes, it computes from the full batch.
                self._changed |= dict.fromkeys(changed(before, dict(module.named_buffers())))
            return joined(outputs)

        return forward

    def _is_open(self, arguments: Arguments, samples: int | None) -> bool:
        """Whether the batch may be the first or the second dimension; reported once."""
        shapes = [
            list(each.shape)
            for each in tensor_leaves(arguments)
            if each.ndim > 2 or (each.ndim == 2 and not each.is_floating_point())
            if each.shape[0] == each.shape[1] == samples
        ]
        if shapes and not self._has_said:
            self._has_said = True
            say(
                f"strategy=dp: forward takes {shapes[0]}, and a batch has {samples} samples: they "
                "may come first or second, so one device computes all of such a batch; use another "
                "data.batch_size, or strategy=ddp"
            )
        return bool(shapes)


def split(arguments: Arguments, count: int, samples: int | None = None) -> list[Arguments]:
    """Split every tensor among the arguments of a call into `count` parts along dimension 0.

    Every part gets the other arguments too. A batch of fewer samples makes fewer parts. Rejected
    are no tensors, first dimensions that differ, and a batch that is the second dimension.
    """
    tensors = tensor_leaves(arguments)
    if not tensors:
        kinds = sorted({type(leaf).__name__ for leaf in tree_leaves(arguments)})
        raise UserError(
            "strategy=dp: forward takes no tensors to split, but "
            f"{', '.join(kinds) or 'nothing'}; use strategy=ddp"
        )
    sizes = {tensor.shape[:1] for tensor in tensors}
    is_second = any(t.ndim > 2 and t.shape[1] == samples != t.shape[0] for t in tensors)
    if len(sizes) != 1 or not tensors[0].ndim or is_second:
        raise UserError(
            "strategy=dp: the first dimension of every tensor that forward takes must be the "
            f"batch, but it got {', '.join(str(list(tensor.shape)) for tensor in tensors)}; "
            "use strategy=ddp"
        )
    count = max(1, min(count, len(tensors[0])))

    def part(number: int) -> Any:
        def of(tensor: Tensor) -> Tensor:
            return _with_attributes(tensor.tensor_split(count)[number], tensor)

        return tree_map_only(Tensor, of, arguments)

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
        return _with_attributes(torch.cat([tensor.to(first.device) for tensor in tensors]), first)

    return tree_map(join, *outputs)


def _with_attributes(made: Tensor, tensor: Tensor) -> Tensor:
    """Add the attributes of a Tensor class of one's own, which PyTorch's operators drop."""
    vars(made).update(vars(tensor))
    return made


class _Caller(nn.Module):
    """Calls the `forward` of the task's class: the instance's own is replaced meanwhile."""

    def __init__(self, task: LightningModule) -> None:
        super().__init__()
        self.task = task

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.task).forward(self.task, *args, **kwargs)


def _on_replicas(
    module: LightningModule, parts: list[Arguments], devices: list[torch.device]
) -> list[Any]:
    """Run each part on a copy of the task on its device, in threads."""
    if len(devices) == 1:
        args, kwargs = parts[0]
        return [type(module).forward(module, *args, **kwargs)]
    callers = replicate(_Caller(module), devices, detach=not torch.is_grad_enabled())
    for caller, device in zip(callers, devices, strict=True):
        set_device(caller.task, device)
    moved = [move_data_to_device(part, device) for part, device in zip(parts, devices, strict=True)]
    return parallel_apply(
        callers, [args for args, _ in moved], [kwargs for _, kwargs in moved], devices
    )
