"""What is replaced of other packages is listed, undone after a fit, and still needed."""

import copy
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

import torch
import warm_ranks
from several_fits import Small, data, quiet_trainer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import onecurve
from onecurve.compat.patches import PATCHES

NAMES = [name for patch in PATCHES.values() for name in patch.names if " " not in name]


def replaced_by_fits(strategies: list[Any]) -> list[str]:
    """The names that are something else after fits of these strategies."""
    before = {name: resolve_name(name) for name in NAMES}
    handlers = len(DTensor._op_dispatcher._custom_op_handlers)
    for strategy in strategies:
        quiet_trainer(strategy, 2, max_epochs=1).fit(Small(), data())
    assert len(DTensor._op_dispatcher._custom_op_handlers) == handlers
    return [name for name in NAMES if resolve_name(name) != before[name]]


def test_all_are_undone_after_a_fit() -> None:
    strategies = [onecurve.DDP(), onecurve.FSDP(), onecurve.Tensor(), onecurve.Pipeline()]
    assert warm_ranks.run(replaced_by_fits, strategies) == []


# What fails here, once a patch is no longer needed.


def still_so() -> dict[str, bool]:
    """What PyTorch does by itself, on two ranks."""
    mesh = init_device_mesh("cpu", (2,))
    full = torch.arange(8.0).view(4, 2)
    shard = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
    assigned, drawn, rows = (copy.deepcopy(shard) for _ in range(3))
    assigned.data = distribute_tensor(full + 1, mesh, [Shard(0)])
    with torch.no_grad():
        drawn.normal_()
        with suppress(NotImplementedError):  # of torch 2.11, which does not lose it
            rows[0] = 9.0
    return {
        "an assigned shard is lost": torch.equal(assigned.full_tensor(), full),
        "both ranks draw the same": torch.equal(*drawn.full_tensor().chunk(2)),
        "assigned rows are lost": rows.full_tensor()[0, 0].item() != 9.0,
        "a norm is a rank's": abs(shard.detach().norm().item() - full.norm().item()) > 1e-3,
    }


def test_pytorch_needs_what_is_replaced() -> None:
    found = warm_ranks.run(still_so)
    assert all(found.values()), found
