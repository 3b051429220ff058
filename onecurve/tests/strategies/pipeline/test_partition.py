"""Layers are measured without memory, and cut into stages in the best way there is."""

import random
from contextlib import nullcontext
from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

import onecurve.strategies.pipeline.partition as partition
import onecurve.strategies.pipeline.shapes as shapes


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
    # A frozen beginning has no backward pass.
    layers["first"].requires_grad_(False)
    frozen, second, *_ = shapes.LayerShapes(layers, nullcontext).costs((torch.rand(64, 1000),))
    assert second / frozen == pytest.approx(2)


def test_no_cut_has_a_cheaper_largest_stage() -> None:
    """Compared with all ways to cut, also in evenness among equals; whole numbers add exactly."""
    generator = random.Random(0)
    for _ in range(200):
        costs = generator.choices([0.0, 1, 1, 2, 5, 30], k=generator.randint(1, 9))
        num_stages = generator.randint(1, len(costs))
        ranks = {}
        for cuts in combinations(range(1, len(costs)), num_stages - 1):
            stages = list(pairwise((0, *cuts, len(costs))))
            sums = [sum(costs[start:stop]) for start, stop in stages]
            rank = max(sums), sum(cost**2 for cost in sums)
            ranks[tuple(stop - start for start, stop in stages)] = rank
        assert ranks[tuple(partition.balanced(costs, num_stages))] == min(ranks.values())
