"""Sequences cut between ranks: outputs and gradients are those of whole ones."""

from functools import cache
from typing import Any

import pytest
import warm_ranks
from conftest import ROUNDING, unless_too_old
from cut_sequences import CASES


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
def test_pieces_are_as_the_whole(name: str) -> None:
    together = SLOW if name in SLOW else QUICK
    found = on_ranks("cut_sequences.differences", 2, together)[name]
    assert {"training", "evaluation"} < set(found)
    assert max(found.values()) <= ROUNDING, found


def test_what_a_network_returns_is_no_view() -> None:
    # FSDP2 hangs its hooks on it, and warns.
    assert not on_ranks("cut_sequences.is_view_of_one_sample", 2)


@pytest.mark.compares
def test_what_a_network_takes_and_returns_may_be_trees() -> None:
    assert max(on_ranks("cut_sequences.in_a_tree", 2).values()) <= 1e-6


REFUSED = {
    "mask": "an attention mask has the shape (6, 6), which fits a shard of the sequence only; use",
    "mean": "the network returns the shape (3, 5) for 6 of 12 positions, so it combines positions",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_its_neighbours_is_refused_where_a_shape_tells(name: str) -> None:
    line = on_ranks("cut_sequences.refusals", 2)[name]
    assert line.startswith("strategy.context=2: ")
    assert REFUSED[name] in line
    assert "strategy.context=1" in line.partition("; ")[2]
    assert "\n" not in line


@pytest.mark.compares
@pytest.mark.parametrize("axes", ["shard x context", "context x tensor", "pipeline x context"])
def test_pieces_beside_another_axis(axes: str) -> None:
    assert on_ranks("cut_axes.differences", 4)[axes] <= ROUNDING
