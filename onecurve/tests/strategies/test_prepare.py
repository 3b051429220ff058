"""What `prepare` draws, before a step that asks for it never, once, or twice."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from onecurve.batch.random import Draws, RankStream
from onecurve.batch.share import Share, share_of
from onecurve.strategies.prepare import PreparedEarly

SAMPLES = 5
SHARES = [share_of(SAMPLES, rank, 2) for rank in range(2)]


class Noise(LightningModule):
    def prepare(self, batch: Tensor) -> Any:
        return batch + torch.randn_like(batch), batch


def drawn(calls: int, rows: Share | None, of: tuple[Draws, ...], before: int = 0) -> list[Tensor]:
    """What each call of `prepare` adds to the rows in a step, and what is drawn after the step."""
    torch.manual_seed(1)
    task, stream = Noise(), RankStream(0, of)
    batch = torch.zeros(SAMPLES if rows is None else rows.size, 3)
    early = PreparedEarly(task, batch, rows) if rows is not None else None
    results = []
    if early is None:
        torch.rand(before)
        results += [task.prepare(batch)[0] for _ in range(calls)]
    else:
        with early.returned_once(stream), stream.of_rank(Draws.STEP, 0):
            torch.rand(before)
            results += [task.prepare(batch)[0] for _ in range(calls)]
    return [*results, torch.rand(3)]


@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("of", [tuple(Draws), ()])
def test_ranks_draw_what_one_process_draws(calls: int, of: tuple[Draws, ...]) -> None:
    one, *_ = whole = drawn(calls, None, of)
    ranks = [drawn(calls, rows, of) for rows in SHARES]
    for number in range(calls):
        joined = torch.cat([rank[number] for rank in ranks])
        assert joined.equal(whole[number])
    assert all(rank[-1].equal(whole[-1]) for rank in ranks)
    assert calls < 2 or not one.equal(whole[1])


def test_what_a_step_draws_of_the_common_stream_comes_first() -> None:
    whole = drawn(1, None, (), before=2)
    ranks = [drawn(1, rows, (), before=2) for rows in SHARES]
    assert torch.cat([rank[0] for rank in ranks]).equal(whole[0])
    assert all(rank[-1].equal(whole[-1]) for rank in ranks)
