"""Layers are measured without memory, and cut into stages in the best way there is."""

import random
from contextlib import nullcontext
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve.strategies.pipeline.partition as partition
import onecurve.strategies.pipeline.report as report
import onecurve.strategies.pipeline.shapes as shapes
from onecurve.errors import UserError


class Pair(nn.Module):
    """Two tensors from one; the second is not to be trained through."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs.transpose(0, 1), inputs.argmax(dim=1)


class Pick(nn.Module):
    """One tensor from two."""

    def forward(self, transposed: Tensor, best: Tensor) -> Tensor:
        return transposed.sum(dim=0)[:, None] + best[:, None]


class Peek(nn.Module):
    """A branch that depends on values."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum().item() > 0 else -inputs


def network() -> dict[str, nn.Module]:
    return {
        "conv": nn.Conv2d(3, 8, 3),
        "norm": nn.BatchNorm2d(8),
        "relu": nn.ReLU(inplace=True),
        "flatten": nn.Flatten(),
        "dropout": nn.Dropout(),
        "linear": nn.Linear(288, 5),
        "pair": Pair(),
        "pick": Pick(),
    }


INPUTS = (torch.rand(4, 3, 8, 8),)


def run(layers: dict[str, nn.Module], inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """What passes between the layers in reality."""
    boundaries = [inputs]
    for layer in layers.values():
        outputs = layer(*boundaries[-1])
        boundaries.append(outputs if isinstance(outputs, tuple) else (outputs,))
    return boundaries


def facts(boundaries: list[tuple[Tensor, ...]]) -> Any:
    return [[(value.shape, value.dtype, value.requires_grad) for value in at] for at in boundaries]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_shapes_are_those_of_a_real_run(training: bool, autocast: bool) -> None:
    layers = network()
    for layer in layers.values():
        layer.train(training)

    def context() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()

    measured = shapes.LayerShapes(layers, context)
    with torch.set_grad_enabled(training), context():
        expected = run(layers, INPUTS)
    # Lightning validates in inference mode.
    with torch.inference_mode(not training):
        found = measured.boundaries(INPUTS, training)
    assert facts(found) == facts(expected)
    assert all(value.is_meta and value.is_contiguous() for at in found for value in at)
    assert found[1][0].dtype == (torch.bfloat16 if autocast else torch.float32)
    assert measured.boundaries((torch.rand(2, 3, 8, 8),), training)[1][0].shape == (2, 8, 6, 6)


def test_it_needs_no_memory_and_not_the_layers_either() -> None:
    """Eight terabytes of weights, which are freed before anything is asked."""
    with torch.device("meta"):
        layers: dict[str, nn.Module] = {str(i): nn.Linear(10**6, 10**6) for i in range(2)}
    measured = shapes.LayerShapes(layers, nullcontext)
    del layers
    inputs = (torch.empty(1, 1).expand(64, 10**6),)
    assert measured.boundaries(inputs, training=True)[2][0].shape == (64, 10**6)


def test_cost_counts_arithmetic_forward_and_backward() -> None:
    """A product costs 2 x 64 x 1000 x 1000 FLOPs; there is one more for each gradient needed."""
    layers: dict[str, nn.Module] = {
        name: nn.Linear(1000, 1000, bias=False) for name in ("first", "second", "frozen")
    }
    layers["frozen"].requires_grad_(False)
    layers["relu"] = nn.ReLU()
    first, second, frozen, relu = shapes.LayerShapes(layers, nullcontext).costs(
        (torch.rand(64, 1000),)
    )
    product = 2 * 64 * 1000 * 1000
    assert first / product == pytest.approx(2, rel=0.4)
    assert second / first == pytest.approx(3 / 2)
    assert frozen == first
    assert 0 < relu < product / 10


def test_a_frozen_beginning_has_no_backward_pass() -> None:
    layers: dict[str, nn.Module] = {name: nn.Linear(50, 50) for name in "abc"}
    layers["a"].requires_grad_(False)
    a, b, c = shapes.LayerShapes(layers, nullcontext).costs((torch.rand(9, 50),))
    assert (b / a, c / a) == pytest.approx((2, 3))


def test_a_layer_that_looks_at_values_is_refused_by_name() -> None:
    measured = shapes.LayerShapes({"linear": nn.Linear(3, 3), "peek": Peek()}, nullcontext)
    with pytest.raises(UserError, match=r"strategy=pipeline: layer peek cannot be measured"):
        measured.boundaries((torch.rand(2, 3),), training=True)


def stage_costs(costs: list[float], counts: list[int]) -> list[float]:
    stops = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return [sum(costs[start:stop]) for start, stop in pairwise(stops)]


def test_no_cut_has_a_cheaper_largest_stage() -> None:
    """Compared with all ways to cut, also in evenness among equals; whole numbers add exactly."""
    generator = random.Random(0)
    for _ in range(200):
        costs = [
            float(generator.choice([0, 1, 1, 2, 5, 30])) for _ in range(generator.randint(1, 9))
        ]
        num_stages = generator.randint(1, len(costs))
        ways = [
            [stop - start for start, stop in pairwise((0, *cuts, len(costs)))]
            for cuts in combinations(range(1, len(costs)), num_stages - 1)
        ]

        def rank(counts: list[int], costs: list[float] = costs) -> tuple[float, float]:
            stages = stage_costs(costs, counts)
            return max(stages), sum(cost**2 for cost in stages)

        assert rank(partition.balanced(costs, num_stages)) == min(map(rank, ways))
        assert partition.balanced(costs, num_stages) in ways


def cut_in_two(balance: Any, stages_per_rank: int = 1, layers: int = 14) -> partition.Partition:
    return partition.Partition.of(
        [1.0] * layers,
        num_ranks=2,
        stages_per_rank=stages_per_rank,
        v_shaped=stages_per_rank == 2,
        balance=balance,
    )


def test_a_partition_covers_all_layers_in_order() -> None:
    auto = cut_in_two("auto", stages_per_rank=2)
    assert [layer for stage in auto.ranges for layer in stage] == list(range(14))
    assert auto.owner == [0, 1, 1, 0]
    assert sorted(auto.costs) == [3, 3, 4, 4]
    assert auto.imbalance == pytest.approx(4 / 3.5)
    given = cut_in_two([4, 10])
    assert given.ranges == [range(4), range(4, 14)]
    assert given.imbalance == pytest.approx(10 / 7)


def test_a_balance_that_does_not_fit_is_refused() -> None:
    for wrong in ([3, 4], [14], [0, 14], [15, -1], [5, 5, 4], [], [7.5, 6.5], 14, "even"):
        with pytest.raises(UserError) as refusal:
            cut_in_two(wrong)
        written = str(wrong).replace(" ", "")
        assert str(refusal.value) == (
            f"strategy.balance={written}: must be 2 numbers from 1 that add up to 14 layers, "
            "such as 'strategy.balance=[7,7]', or auto"
        )


def test_too_few_layers_are_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"3 layers cannot make 4 stages .*strategy.schedule=1f1b"):
        cut_in_two("auto", stages_per_rank=2, layers=3)
    with pytest.raises(UserError, match=r"1 layers cannot make 2 stages .*trainer.devices=1"):
        cut_in_two("auto", layers=1)


def test_the_table_names_layers_without_what_they_share() -> None:
    names = [f"network.layer{i}" for i in range(14)]
    table = report.partition_table(cut_in_two([4, 10]), names, [1000] * 14)
    cells = [list(column.cells) for column in table.columns]
    assert cells == [
        ["0", "1"],
        ["0", "1"],
        ["layer0 … layer3 (4)", "layer4 … layer13 (10)"],
        ["4,000", "10,000"],
        ["28.6%", "71.4%"],
    ]
