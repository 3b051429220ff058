"""The five axes of a mesh, as numbers."""

import pytest

from onecurve.strategies.mesh.sizes import Sizes, filled


def test_every_rank_has_coordinates_of_its_own() -> None:
    sizes = Sizes(replicate=2, pipeline=3, shard=2, context=1, tensor=2)
    places = [sizes.coordinates(rank) for rank in range(sizes.ranks)]
    assert len(set(places)) == sizes.ranks == 24
    assert places[1] == Sizes(0, 0, 0, 0, 1)  # neighbours share layers that are cut within
    assert places[-1] == Sizes(1, 2, 1, 0, 1)


def test_groups_are_the_ranks_that_differ_along_these_axes_only() -> None:
    sizes = Sizes(replicate=2, shard=2, tensor=2)
    assert sizes.groups("tensor") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sizes.groups("replicate", "shard") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sizes.groups("pipeline") == [[rank] for rank in range(8)]
    assert sizes.data_parallel == 4


def test_auto_is_the_number_of_ranks_that_the_others_leave() -> None:
    assert filled(8, shard="auto", tensor=2) == Sizes(shard=4, tensor=2)
    assert filled(8, pipeline=2, shard=2, tensor=2).words() == "pipeline 2 x shard 2 x tensor 2"


@pytest.mark.parametrize("sizes", [{"tensor": 3, "shard": "auto"}, {"tensor": 4}, {"tensor": 16}])
def test_axes_whose_product_is_not_the_number_of_ranks_are_rejected(
    sizes: dict[str, int | str],
) -> None:
    with pytest.raises(ValueError, match="takes"):
        filled(8, **sizes)
