"""Clipping uses the norm of all gradients, whatever meshes they are on: four ranks tell."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import warm_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grad_norm_, get_total_norm

from onecurve.strategies.clip import clipping_over_ranks

PLAN: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3), nn.LayerNorm(3))


def _mesh(*axes: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)


def replicas_of_shards(net: Any) -> None:
    fully_shard(net[0], mesh=_mesh("replicate", "shard"))
    fully_shard(net, mesh=_mesh("replicate", "shard"))


def shards_of_tensor_parallel(net: Any) -> None:
    mesh = _mesh("shard", "tensor")
    parallelize_module(net, mesh["tensor"], PLAN)
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh["shard"])


def tensor_parallel_beside_plain(net: Any) -> None:
    parallelize_module(net, _mesh("shard", "tensor")["tensor"], PLAN)


def shards_beside_plain(net: Any) -> None:
    fully_shard(net[0], mesh=_mesh("replicate", "shard"))


def nothing_here_on_one_mesh(net: Any) -> None:
    shards_of_tensor_parallel(net)
    for parameter in net[3].parameters():
        parameter.requires_grad = False


LAYOUTS: dict[str, Callable[[Any], None]] = {
    layout.__name__: layout
    for layout in (
        replicas_of_shards,
        shards_of_tensor_parallel,
        tensor_parallel_beside_plain,
        shards_beside_plain,
        nothing_here_on_one_mesh,
    )
}
FACTORS = {"clipped": 1.0, "kept": 1e-6, "inf": torch.inf, "nan": torch.nan}


def clipped_in_ranks() -> dict[str, dict[str, tuple[float, float]]]:
    """How far norm and clipped gradients are from those of the whole, on any rank."""
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    found = {
        name: {how: _difference(layout, factor) for how, factor in FACTORS.items()}
        for name, layout in LAYOUTS.items()
    }
    found["pipeline of shards"] = {"clipped": _pipeline()}
    found["sums"] = {"clipped": _of_sums()}
    dist.destroy_process_group()
    return found


def _difference(layout: Callable[[Any], None], factor: float) -> tuple[float, float]:
    whole, cut = network(), network()
    layout(cut)
    for parameter, other in zip(whole.parameters(), cut.parameters(), strict=True):
        parameter.requires_grad = other.requires_grad
    for net in (whole, cut):
        inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
        (net(inputs) * factor).square().sum().backward()
    trained = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    norms = [nn.utils.clip_grad_norm_(trained, 0.5), _clipped(cut)]
    gradients = [
        (a.grad, b.grad.full_tensor() if isinstance(b.grad, DTensor) else b.grad)
        for a, b in zip(whole.parameters(), cut.parameters(), strict=True)
        if a.requires_grad
    ]
    return _furthest([(norms[0], norms[1])]), _furthest(gradients)


def _clipped(net: nn.Module, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    with clipping_over_ranks(net, group):
        return nn.utils.clip_grad_norm_(net.parameters(), 0.5)


def _pipeline() -> tuple[float, float]:
    """Two stages of one layer each, whose parameters two ranks share."""
    mesh = _mesh("pipeline", "shard")
    whole, cut = network(), network()
    for net in (whole, cut):
        net(torch.ones(4, 5)).square().sum().backward()
    first = mesh.get_local_rank("pipeline") == 0
    held: list[Any] = []
    for parameter in (cut[0] if first else cut[2:]).parameters():
        shard = DTensor.from_local(parameter.grad, mesh["shard"], [Replicate()])
        held.append(nn.Parameter(torch.zeros_like(shard)))
        held[-1].grad = shard.redistribute(placements=[Shard(0)])
    expected = nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
    norm = _clipped(nn.ParameterList(held), mesh.get_group("pipeline"))
    own = (whole[0] if first else whole[2:]).parameters()
    gradients = [(a.grad, b.grad.full_tensor()) for a, b in zip(own, held, strict=True)]
    return _furthest([(expected, norm)]), _furthest(gradients)


def _of_sums() -> tuple[float, float]:
    """A gradient of which each rank has an addend."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    gradient = torch.arange(1.0, 7)
    held: Any = nn.Parameter(DTensor.from_local(torch.zeros(6), mesh, [Replicate()]))
    held.grad = DTensor.from_local(gradient / 4, mesh, [Partial()])
    norm = _clipped(nn.ParameterList([held]))
    scaled = gradient * 0.5 / (gradient.norm() + 1e-6)
    return _furthest([(gradient.norm(), norm)]), _furthest([(scaled, held.grad.full_tensor())])


def _furthest(pairs: list[tuple[Any, Any]]) -> float:
    """Relative to 1; infinite where only one of a pair is not finite."""
    far = torch.stack(
        [
            torch.where(a.isnan() & b.isnan() | (a == b), 0, (a - b).abs())
            .nan_to_num(torch.inf)
            .max()
            for a, b in pairs
        ]
    ).max()
    dist.all_reduce(far, op=dist.ReduceOp.MAX)
    return float(far)


@cache
def clipped() -> dict[str, Any]:
    result: dict[str, Any] = warm_ranks.run("test_clip.clipped_in_ranks", (), processes=4)
    return result


@pytest.mark.compares
@pytest.mark.parametrize(
    ("layout", "how"),
    [
        *((layout, how) for layout in LAYOUTS for how in FACTORS),
        ("pipeline of shards", "clipped"),
        ("sums", "clipped"),
    ],
)
def test_the_norm_is_that_of_the_full_network(layout: str, how: str) -> None:
    norm, gradients = clipped()[layout][how]
    assert norm <= 1e-12
    assert gradients <= 1e-12


def test_one_process_clips_as_torch_does() -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        net(torch.ones(2, 3)).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(nets[0].parameters(), 0.1)
    with clipping_over_ranks(nets[1]):
        assert torch.equal(norm, clip_grad_norm_(nets[1].parameters(), 0.1))
        assert clip_grad_norm_([], 0.1) == 0
    assert all(map(torch.equal, *([p.grad for p in net.parameters()] for net in nets)))


def test_parameters_of_other_modules_are_clipped_as_usual() -> None:
    other = nn.Linear(3, 2)
    other(torch.ones(2, 3)).square().sum().backward()
    expected = get_total_norm([parameter.grad for parameter in other.parameters()])
    before = dict(vars(nn.utils.clip_grad))
    with clipping_over_ranks(nn.Linear(3, 2), counted=lambda _: pytest.fail("of the task")):
        assert torch.equal(clip_grad_norm_(other.parameters(), 0.1), expected)
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(_with_nan(other), 0.1, error_if_nonfinite=True)
    assert vars(nn.utils.clip_grad) == before


def _with_nan(net: nn.Module) -> list[nn.Parameter]:
    parameters = list(net.parameters())
    assert parameters[0].grad is not None
    parameters[0].grad.fill_(torch.nan)
    return parameters
