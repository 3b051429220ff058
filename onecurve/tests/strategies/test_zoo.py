"""The zoo: each module and each data set equals single under each strategy, or is rejected."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import warm_ranks
from conftest import ROUNDING, Shared, largest_difference, one_of_a_kind
from torch.utils._pytree import tree_flatten
from zoo.data import NoLoader
from zoo.rows import ALSO_REPLICATED, IN_ONE_BATCH, OF_EACH_KIND, REPLICATED, ROWS, STRATEGIES, Row
from zoo.tasks import Skips
from zoo.train import DEVICES, LIGHTNING, train_rows, trained

from onecurve.machine import unchanged_environment


def rows_of(strategy: str) -> tuple[str, ...]:
    return tuple(name for name, row in ROWS.items() if strategy in (*row.under, "single"))


CELLS = [(strategy, name) for strategy in STRATEGIES for name in rows_of(strategy)]
KEPT = [(strategy, name) for strategy in ("fsdp", "pipeline") for name in OF_EACH_KIND]
Column = Callable[..., dict[str, Any]]


def trained_rows(strategy: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Rows under a strategy, in one go."""
    if strategy in ("single", "dp"):
        with unchanged_environment(LIGHTNING):
            return train_rows(strategy, names)
    processes = DEVICES.get(strategy, 2)
    result: dict[str, Any] = warm_ranks.run(
        "zoo.train.train_rows", (strategy, names), processes=processes
    )
    return result


@pytest.fixture(scope="session")
def column(shared: Shared) -> Column:
    """``column(strategy, names)``; all rows where none are named."""

    def read(strategy: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
        names = names or rows_of(strategy)
        name = f"{strategy}, {len(names)} rows"
        rows: dict[str, Any] = shared(name, partial(trained_rows, strategy, names))
        return rows

    return cache(read)


@pytest.mark.compares
@pytest.mark.parametrize(("strategy", "name"), one_of_a_kind(CELLS, kept=KEPT))
def test_a_cell(column: Column, strategy: str, name: str) -> None:
    names = OF_EACH_KIND if (strategy, name) in KEPT else ()
    row, single = ROWS[name], column("single", names)[name]
    result = column(strategy, names)[name]
    assert not isinstance(single, str), single
    if strategy in row.refused:
        assert isinstance(result, str), "it was trained"
        assert re.search(row.refused[strategy], result), result
        assert len(result.splitlines()) == 1, result
        return
    assert not isinstance(result, str), result
    if strategy in row.announced:
        said = result["said"][-1]
        assert re.search(row.announced[strategy], said), said
        if "nothing is split" in said or "as exact" in said:
            assert_equal(result, single)
        return
    assert not result["said"]
    if strategy in row.apart:
        assert largest_difference(single["losses"], result["losses"]) > 1e-4
        return
    assert_equal(result, single)


@pytest.mark.compares
@pytest.mark.parametrize("name", ALSO_REPLICATED)
@pytest.mark.long
@pytest.mark.parametrize("strategy", REPLICATED)
def test_a_cell_of_two_axes(column: Column, name: str, strategy: str) -> None:
    single, result = column("single")[name], column(strategy, ALSO_REPLICATED)[name]
    assert not isinstance(result, str), result
    assert_equal(result, single)


def assert_equal(result: dict[str, Any], single: dict[str, Any]) -> None:
    ours, theirs = ({**of, "said": None} for of in (result, single))
    (_, *numbers), spec = tree_flatten(ours)
    (_, *expected), spec_of_single = tree_flatten(theirs)
    assert spec == spec_of_single
    assert largest_difference(expected, numbers) <= ROUNDING


@pytest.mark.parametrize("name", one_of_a_kind(IN_ONE_BATCH, kept=["accumulated"]))
def test_accumulated_batches_make_the_step_of_one(column: Column, name: str) -> None:
    """Under single, to which the other strategies are compared."""
    with unchanged_environment(LIGHTNING):
        expected = trained(IN_ONE_BATCH[name], "single")
    names = OF_EACH_KIND if name in OF_EACH_KIND else ()
    result = dict(column("single", names)[name])  # other tests read it, too
    batches, steps = len(result["losses"]) // 2, len(expected["losses"]) // 2
    window = ROWS[name].trainer["accumulate_grad_batches"]
    ends = [min(window * (step + 1), batches) - 1 for step in range(steps)]
    assert ends[-1] == batches - 1
    result["losses"] = [result["losses"][epoch * batches + end] for epoch in (0, 1) for end in ends]
    assert_equal(result, expected)


def test_a_batch_that_is_skipped_does_not_count_among_those_accumulated() -> None:
    last_of_four = Row(
        partial(Skips, 3), partial(NoLoader, 4, 4, 4, 4, 5), trainer={"accumulate_grad_batches": 4}
    )
    alone = Row(partial(Skips, 1), partial(NoLoader, 12, 4, 5))
    with unchanged_environment(LIGHTNING):
        found, expected = (trained(row, "single")["weights"] for row in (last_of_four, alone))
    (ours, _), (theirs, _) = tree_flatten(found), tree_flatten(expected)
    assert largest_difference(theirs, ours) <= ROUNDING
