"""Nothing that a run opens is open to strangers, and nothing secret stays behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY
from processes import Command, end, listens

from onecurve.launch.signals import passing_on

SLOW = ("callbacks=[progress]", "trainer.max_epochs=100000", "strategy=ddp")


@pytest.fixture(params=["two", "one"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    """A command that trains, with ranks of its own or as the only rank."""
    devices = ("trainer.devices=1",) if request.param == "one" else ()
    process = Command(tmp_path, "train.py", *TINY, *SLOW, *devices)
    process.wait_for_line("epoch 1/")
    yield process
    end(process)


def test_one_node_listens_to_itself_alone(live: Command) -> None:
    assert listens(live.pid) == {"127.0.0.1"}


def test_a_rank_that_is_gone_does_not_keep_a_signal_from_the_others(tmp_path: Path) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    (tmp_path / str(gone)).touch()
    stopped: list[int] = []
    with passing_on(tmp_path, 1, lambda number, frame: stopped.append(number)) as received:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == received == [signal.SIGTERM]
