"""`breakpoint()` in ranks: one of them gets the terminal, and the run continues afterwards."""

import logging
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli
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


class Told(Callback):
    """Logs something that only `hydra.verbose` shows."""

    def on_fit_start(self, *_: Any) -> None:
        for name in ("mine", "another"):
            logging.getLogger(name).debug("a detail of %s", name)


def test_the_log_of_every_rank_is_as_verbose_as_hydra(train: Cli) -> None:
    told = "+callbacks.told._target_=test_debugging.Told"
    outcome = train("hydra.verbose=[mine]", "strategy=ddp", told, "trainer.fast_dev_run=true")
    logs = [log.read_text() for log in (outcome.run / "logs").iterdir()]
    assert len(logs) == 2
    for text in logs:
        assert "DEBUG mine: a detail of mine" in text
        assert "a detail of another" not in text
    assert "a detail" not in outcome.out + outcome.err
