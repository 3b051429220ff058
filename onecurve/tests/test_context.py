"""Context parallelism: outputs and gradients are those of full sequences."""

from functools import cache
from typing import Any

import pytest
import warm_ranks
from conftest import ROUNDING, unless_too_old
from sharded_sequences import CASES


@cache
def on_ranks(work: str, processes: int, *arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = warm_ranks.run(work, arguments, processes=processes)
    return result


SLOW = ("compiled",)
COMPILES = unless_too_old("strategy.context with compile")
QUICK = tuple(name for name in CASES if name not in SLOW)


@pytest.mark.compares
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=[pytest.mark.long, COMPILES]) for name in SLOW)]
)
def test_sharded_sequences_give_the_results_of_full_ones(name: str) -> None:
    together = SLOW if name in SLOW else QUICK
    found = on_ranks("sharded_sequences.differences", 2, together)[name]
    assert {"training", "evaluation"} < set(found)
    assert max(found.values()) <= ROUNDING, found


def test_gathered_outputs_are_not_views() -> None:
    # FSDP2 hangs its hooks on it, and warns.
    assert not on_ranks("sharded_sequences.is_view_of_one_sample", 2)


@pytest.mark.compares
def test_inputs_and_outputs_may_be_trees() -> None:
    assert max(on_ranks("sharded_sequences.in_a_tree", 2).values()) <= 1e-6


REFUSED = {
    "mask": "an attention mask has the shape (6, 6), which fits a shard of the sequence only; use",
    "mean": "the network returns the shape (3, 5) for 6 of 12 positions, so it combines positions",
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_combine_positions_are_rejected(name: str) -> None:
    line = on_ranks("sharded_sequences.refusals", 2)[name]
    assert line.startswith("strategy.context=2: ")
    assert REFUSED[name] in line
    assert "strategy.context=1" in line.partition("; ")[2]
    assert "\n" not in line


@pytest.mark.compares
@pytest.mark.parametrize("axes", ["shard x context", "context x tensor", "pipeline x context"])
def test_context_combines_with_another_axis(axes: str) -> None:
    assert on_ranks("sharded_axes.differences", 4)[axes] <= ROUNDING
