"""What an older PyTorch cannot do is refused in one line, and the table is true of the one here."""

import pytest
import torch
from conftest import Cli

from onecurve import Pipeline, RankFailed, UserError, parity, torch_versions
from onecurve.gpu_check.tasks import small_tokens, small_transformer
from onecurve.torch_versions import TABLE, too_old

HERE = tuple(map(int, torch.__version__.split(".")[:2]))


def test_the_version_is_that_of_the_torch_that_is_imported() -> None:
    assert torch_versions.installed() == HERE


@pytest.mark.parametrize("feature", TABLE)
def test_a_line_names_the_version_and_what_works(
    feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = TABLE[feature]
    monkeypatch.setattr(torch_versions, "installed", lambda: needs.first)
    assert too_old(feature) is None
    monkeypatch.setattr(torch_versions, "installed", lambda: (needs.first[0], needs.first[1] - 1))
    line = too_old(feature)
    assert line is not None
    assert line.startswith(f"{feature}: torch {needs.first[0]}.{needs.first[1] - 1} ")
    assert line.endswith(f"; use {needs.instead}, or torch>={needs.first[0]}.{needs.first[1]}")


def test_a_schedule_is_refused_before_anything_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_versions, "installed", lambda: (2, 11))
    refused = cli("train.py", "strategy=pipeline", "strategy.schedule=zbv")
    assert (refused.status, refused.runs) == (2, [])
    assert refused.err.strip() == (
        "error: strategy.schedule=zbv: torch 2.11 has no gradients to send in this "
        "schedule; use 1f1b, or torch>=2.12"
    )
    with pytest.raises(UserError, match=r"schedule=zbv: torch 2\.11 .* torch>=2\.12"):
        Pipeline(schedule="zbv")


@pytest.mark.slow
@pytest.mark.compares
def test_the_schedule_works_from_the_version_on_that_the_table_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By nobody refused, it fails where it would be."""
    first = TABLE["strategy.schedule=zbv"].first
    monkeypatch.setattr(torch_versions, "TABLE", {})
    strategy = Pipeline(schedule="zbv", timeout_seconds=20)
    try:
        works = parity(
            small_transformer, small_tokens, strategy=strategy, steps=4, accelerator="cpu"
        ).equal
    except RankFailed:
        works = False
    assert works == (first <= HERE)
