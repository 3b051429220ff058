"""Logits sharded along the vocabulary give the results of full ones, and are gathered if needed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import warm_ranks
from conftest import ROUNDING
from sharded_networks import Task
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

from onecurve.strategies.tensor.parallel import apply_plan
from onecurve.strategies.tensor.sharded_logits import leave_logits, sharded_logits

ENTRIES = 8
Loss = Callable[[Tensor, Tensor], Tensor]


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    options = {"ignore_index": 1, "label_smoothing": 0.1}
    return F.cross_entropy(logits.view(-1, ENTRIES), targets.flatten(), **options)


def classes_second(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").square().sum()


def shifted(logits: Tensor, targets: Tensor) -> Tensor:
    """Of the next token, as a language model's, on logits that are scaled."""
    before = (logits[..., :-1, :] / 2).contiguous()
    return F.cross_entropy(before.flatten(0, 1), targets[:, 1:].flatten(), reduction="sum")


def halves(logits: Tensor, targets: Tensor) -> Tensor:
    parts = zip(logits.chunk(2), targets.chunk(2), strict=True)
    return torch.stack([F.cross_entropy(part.mT, of) for part, of in parts]).sum()


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(-1) == targets).double().mean()


def weighted(logits: Tensor, targets: Tensor) -> Tensor:
    weight = torch.arange(1.0, 1 + ENTRIES).double()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight)


def chances(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.softmax(-1)[..., 0].sum()


def by_a_number_of_each(logits: Tensor, targets: Tensor) -> Tensor:
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy((logits * scale).flatten(0, 1), targets.flatten())
    (gradient,) = torch.autograd.grad(loss, scale, retain_graph=True)
    return loss + gradient


def across_entries(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.view(-1, ENTRIES // 4, 4).amax(-1).sum()


ON_SHARDS = (smoothed, classes_second, shifted, halves, accuracy)
FULL = (weighted, chances, by_a_number_of_each, across_entries)


def compare(loss: Loss) -> tuple[float, float, set[str]]:
    """How far loss and gradient are from those of full logits, and what was sent for the loss."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    generator = torch.Generator().manual_seed(1)
    full = torch.randn(4, 3, ENTRIES, dtype=torch.float64, generator=generator).requires_grad_()
    targets = torch.randint(ENTRIES, (4, 3), generator=generator)
    own = full.detach().chunk(2, -1)[mesh.get_local_rank()].clone().requires_grad_()
    expected = loss(full, targets)
    with sharded_logits(), CommDebugMode() as sent:
        found = loss(leave_logits(mesh, own), targets)
    apart = (found - expected).abs().item()
    if not expected.requires_grad:
        return apart, 0.0, {str(kind) for kind in sent.get_comm_counts()}
    expected.backward()
    found.backward()
    assert full.grad is not None
    assert own.grad is not None
    gradient = full.grad.chunk(2, -1)[mesh.get_local_rank()]
    kinds = {str(kind).split(".")[1] for kind in sent.get_comm_counts()}
    return apart, (own.grad - gradient).abs().max().item(), kinds


@pytest.mark.compares
@pytest.mark.parametrize("loss", ON_SHARDS + FULL, ids=lambda loss: loss.__name__)
def test_a_loss_of_shards_is_that_of_full_logits(loss: Loss, tmp_path: Path) -> None:
    apart, gradient, sent = warm_ranks.run(compare, (loss,), processes=2, logs=tmp_path)
    assert apart <= ROUNDING
    assert gradient <= ROUNDING
    assert any("allgather" in kind for kind in sent) == (loss in FULL)


def embedded() -> float:
    """How far the gradient of an embedding with padding is that is used twice before it."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    torch.manual_seed(1)
    layer, first, second = nn.Embedding(8, 3, padding_idx=5).double(), [[1, 5], [7, 2]], [[6, 5]]
    full = layer.weight.detach().clone().requires_grad_()

    def loss(look_up: Callable[[Tensor], Tensor]) -> Tensor:
        seen, other = look_up(torch.tensor(first)), look_up(torch.tensor(second))
        seen += 1
        return (seen.square().sum(0) * other.exp()).sum()

    loss(lambda indices: F.embedding(indices, full, 5)).backward()
    apply_plan(Task(layer), {"network": "vocab"}, mesh, sequence=False)
    loss(layer).backward()
    found = layer.weight.grad
    assert found is not None
    assert full.grad is not None
    return (found.full_tensor() - full.grad).abs().max().item()  # type: ignore[attr-defined]


@pytest.mark.compares
def test_an_embedding_of_shards_is_used_twice(tmp_path: Path) -> None:
    assert warm_ranks.run(embedded, (), processes=2, logs=tmp_path) <= ROUNDING
