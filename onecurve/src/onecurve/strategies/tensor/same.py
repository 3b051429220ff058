"""A numerical guard: what is cut makes the same of an input as it did whole, with its gradients.

A plan may be wrong in ways that no shape tells, such as another order of a fused projection's rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from ...errors import UserError
from ..tolerance import tolerance
from ..trial import evaluating, restore_constant, vary_constant

Run = Callable[[], Any]


class Whole(NamedTuple):
    """What was computed before anything was cut."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    """Norm of each parameter's."""
    passed: dict[str, tuple[torch.Size, Tensor]]
    """Shape and norm of what each module made first, in that order."""
    constant: dict[str, float]
    """Parameters that began with one number throughout, such as zeros, and were varied."""


def collect(module: LightningModule, run: Run) -> Whole:
    """Compute with whole layers. All ranks of a tensor group have the same weights and inputs.

    Parameters that are constant, as those of an output that begins with zeros, would hide mistakes:
    they are varied until `compare` has been called.

    Args:
        module: The task, whose parameters have no gradients yet.
        run: Calls the layers that are to be cut with a small input, the same each time, such as
            ``partial(module, *inputs)``, and returns what they make.
    """
    constant = vary_constant(module)
    outputs, gradients, passed = _computed(module, run, None)
    return Whole(outputs, gradients, passed, constant)


def compare(
    module: LightningModule, run: Run, whole: Whole, mesh: DeviceMesh, key: str = "strategy.plan"
) -> None:
    """Compute with cut layers, before FSDP2 gets them, and refuse what differs.

    Args:
        module: The same task, cut.
        run: As for `collect`.
        whole: What `collect` returned.
        mesh: The ranks that share layers.
        key: What the plan came from.

    Raises:
        UserError: That names the first module that differs.
    """
    name = type(module).__name__
    instead = "use strategy.plan=auto, or strategy=fsdp"
    try:
        outputs, gradients, passed = _computed(module, run, mesh)
    except UserError:
        raise
    # Whatever a module that expects the whole does with pieces.
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{key}: cut by this plan, {name} fails ({first}); leave out what uses these layers "
            f"otherwise than by calling them, or {instead}"
        ) from error
    finally:
        restore_constant(module, whole.constant)
    apart = max(map(_apart, outputs, whole.outputs), default=0.0)
    of_gradients = {
        path: _apart(norm, whole.gradients[path], gradients) for path, norm in gradients.items()
    }
    apart = max(apart, *of_gradients.values(), 0.0)
    dtype = max((tensor.dtype for tensor in whole.outputs), key=tolerance)
    # All ranks of a group end alike.
    worst = torch.tensor(apart, device=whole.outputs[0].device)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=mesh.get_group())
    if not worst.item() <= tolerance(dtype):
        both = [path for path, made in passed.items() if made[0] == whole.passed[path][0]]
        wrong = [path for path in both if not _near(passed[path][1], whole.passed[path][1])]
        wrong = wrong or [path for path, far in of_gradients.items() if not far <= tolerance(dtype)]
        raise UserError(
            f"{key}: cut by this plan, {name} computes something else than whole "
            f"(apart by {worst.item():.1e}), first in {(wrong or ['its outputs'])[0]}; "
            "rows of a fused projection must have heads outermost, and nothing but elementwise "
            f"layers may lie between colwise and rowwise; {instead}"
        )


def _near(norm: Tensor, other: Tensor) -> bool:
    return _apart(norm, other) <= 10 * tolerance(norm.dtype)


def _apart(made: Tensor, whole: Tensor, of: Any = None) -> float:
    if made.shape != whole.shape:
        return float("inf")
    if torch.equal(made.isfinite(), whole.isfinite()):
        # What is not finite is so without being cut, which is another's to say.
        made, whole = made.nan_to_num(0, 0, 0), whole.nan_to_num(0, 0, 0)
    size = whole.norm()
    if of is not None:
        # A gradient that is zero but for rounding is measured by the others.
        size = torch.maximum(size, 1e-3 * torch.stack([*of.values()]).nan_to_num(0, 0, 0).max())
    return float((made - whole).norm() / size.clamp(min=torch.finfo(whole.dtype).tiny))


def _computed(module: LightningModule, run: Run, mesh: DeviceMesh | None) -> Any:
    passed: dict[str, tuple[torch.Size, Tensor]] = {}
    gradients: dict[str, Tensor] = {}
    hooks: list[Any] = []
    for name, part in module.named_modules():

        def note(_: nn.Module, __: Any, made: Any, name: str = name) -> None:
            if type(made) is Tensor and made.is_floating_point():
                passed.setdefault(name, (made.shape, made.detach().norm()))

        hooks.append(part.register_forward_hook(note))
    for name, parameter in module.named_parameters():

        def take(own: Tensor, name: str = name) -> None:
            assert own.grad is not None
            gradients[name], own.grad = _norm(own.grad), None

        if parameter.requires_grad and parameter.is_leaf:
            hooks.append(parameter.register_post_accumulate_grad_hook(take))  # type: ignore[no-untyped-call]
    try:
        with evaluating(module), torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            made = [tensor for tensor in tree_leaves(run()) if isinstance(tensor, Tensor)]
            outputs = [tensor for tensor in made if tensor.is_floating_point()]
            learnt = [tensor for tensor in outputs if tensor.requires_grad]
            if learnt:
                torch.autograd.backward(learnt, [_drawn(tensor) for tensor in learnt])
    finally:
        for hook in hooks:
            hook.remove()
    if mesh is not None:
        gradients = {name: _over(gradients[name], mesh) for name in sorted(gradients)}
    return [tensor.detach() for tensor in outputs], gradients, passed


def _drawn(tensor: Tensor) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(tensor.shape, generator=draws).to(tensor)


def _norm(gradient: Tensor) -> Any:
    if isinstance(gradient, DTensor):
        return "cut", gradient.to_local().norm()
    return gradient.norm()


def _over(norm: Any, mesh: DeviceMesh) -> Tensor:
    """Of all ranks' pieces, where it is of one."""
    if isinstance(norm, Tensor):
        return norm
    squared: Tensor = norm[1].square()
    dist.all_reduce(squared, group=mesh.get_group())
    return squared.sqrt()
