"""`breakpoint()` in ranks: one of them gets the terminal, and the run continues afterwards."""

from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from lightning.pytorch import Callback, Trainer
from processes import Command, in_terminal

STOPS = (
    *TINY, "callbacks=[]", "+callbacks.stops._target_=test_debugging.Stops", "strategy=ddp",
    "trainer.max_epochs=1",
)  # fmt: skip


class Stops(Callback):
    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 2:
            mine = f"in {trainer.global_rank} of {trainer.world_size}"
            breakpoint()
            print(mine)


@pytest.mark.slow
def test_the_chosen_rank_has_the_terminal(tmp_path: Path) -> None:
    answers = ["p mine.upper()\n", "c\n"]
    status, shown = in_terminal(
        tmp_path, *STOPS, "launch.debug_rank=1", prompt="(Pdb, rank 1) ", answers=answers
    )
    assert status == 0, shown
    assert "'IN 1 OF 2'" in shown
    assert "Training finished" in shown


@pytest.mark.slow
def test_without_a_terminal_a_breakpoint_is_ignored_with_a_message(tmp_path: Path) -> None:
    # Its path is too long for the addresses of sockets, with which ranks are started.
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    process = Command(tmp_path, "train.py", *STOPS, TMPDIR=str(folder))
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert err.count("rank 0 ignores breakpoint(): there is no terminal;") == 1
