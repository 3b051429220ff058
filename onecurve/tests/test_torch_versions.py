"""What an older PyTorch cannot do is rejected in one line; the table is right for this version."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import several_fits
import stages
from conftest import Refused, one_of_a_kind
from gpu_check.tasks import small_tokens, small_transformer

from onecurve import Pipeline, Single, UserError, parity, torch_versions
from onecurve.errors import in_python
from onecurve.torch_versions import too_old


def test_a_schedule_that_this_torch_lacks_is_rejected_before_anything_starts(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_versions, "installed", lambda: (2, 11))
    assert refused("train.py", "strategy=pipeline", "strategy.schedule=zbv") == (
        "error: strategy.schedule=zbv: torch 2.11 gets gradients of some weights wrong in this "
        "schedule; use 1f1b, or torch>=2.13"
    )
    with pytest.raises(UserError, match=r"schedule='zbv': torch 2\.11 .* torch>=2\.13"):
        Pipeline(schedule="zbv")
    monkeypatch.setattr(torch_versions, "installed", lambda: (2, 13))
    assert too_old("strategy.schedule=zbv") is None


def compiled() -> Any:
    strategy: Any = Single(activation_checkpointing="selective")
    strategy.compiled, strategy.compile_backend = "layer", "inductor"
    return strategy


# A strategy, a task and its data; the others of the table are in rows of tests/parity/cases.py.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "strategy=pipeline whose stages pass on what has no gradient": (
        partial(Pipeline, microbatches=2),
        partial(stages.Of, stages.UNet),
        several_fits.data,
    ),
    "activation_checkpointing=selective with compile in float64": (
        compiled,
        small_transformer,
        small_tokens,
    ),
}


@pytest.mark.compares
@pytest.mark.parametrize("feature", one_of_a_kind(CASES, kept=[*filter(too_old, CASES)]))
def test_it_works_here_or_is_rejected(feature: str) -> None:
    make_strategy, make_task, make_data = CASES[feature]
    options: dict[str, Any] = {"steps": 4, "accelerator": "cpu"}
    if line := too_old(feature):
        with pytest.raises(UserError, match=re.escape(in_python(line))):
            parity(make_task, make_data, strategy=make_strategy(), **options)
    else:
        found = parity(make_task, make_data, strategy=make_strategy(), **options)
        assert found.equal, found.table()
