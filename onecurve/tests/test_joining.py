"""How nodes meet: what they wait for, whom they refuse, and what each must have read."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import (
    ROOT,
)
from nodes import (
    CAN_MOUNT,
    NODE,
    TRAIN,
    Start,
    StartBy,
    finish,
    free_port,
    one_run,
    wait_until,
)
from torch.distributed import PrefixStore, TCPStore

from onecurve.errors import UserError
from onecurve.launch import addresses
from onecurve.launch.store import Messages

NAMED_LATE = """
import sys, time
from onecurve.launch.nodes.joining import _store_at
print(_store_at("job-node-0-0.job", int(sys.argv[1]), time.monotonic() + 60, 60)[1])
"""


@pytest.mark.long
@pytest.mark.skipif(not CAN_MOUNT, reason="a file of hosts of a node's own needs root")
def test_a_name_that_leads_nowhere_yet_is_waited_for(start_by: StartBy, tmp_path: Path) -> None:
    """Also by the node that it names, which then has the store."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    mounted = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    python = (sys.executable, "-c", NAMED_LATE, str(free_port()))
    node = start_by("unshare", "--mount", "bash", "-c", mounted, "bash", *python)
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(timeout=4)
    with hosts.open("a") as file:
        file.write("127.0.0.1 job-node-0-0.job\n")
    ((out, _),) = finish(node)
    assert out == "True\n"


def test_a_node_that_nobody_joins_gives_up(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "only 1 of 2 nodes" in err
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nobody_is_gives_up(start: Start, tmp_path: Path) -> None:
    # An address for documentation: no machine has it.
    place = "launch.rendezvous=192.0.2.1:29500"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "nobody answered" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_different_commands_are_refused(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, f"optimizer.lr=0.0{lr}") for lr in (1, 2)]
    for _, err in finish(*nodes, status=2):
        assert err.startswith("error: optimizer.lr=0.01: was typed on one of")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def as_second_node() -> Iterator[Callable[..., Messages]]:
    """Arrive at a meeting as a second node that waits, and return its store."""
    done = threading.Event()

    def arrive(place: str, typed: list[str], secret: str = "") -> Messages:
        host, port = place.split(":")
        wait_until(lambda: addresses.accepts_connections(host, int(port)))
        store = PrefixStore("meeting", TCPStore(host, int(port), is_master=False))
        messages = Messages(store, secret)
        wait_until(lambda: messages.count("arrived") == 1)
        messages.count("arrived", 1)
        messages.say("member/1", ["z", 1, "runs/other", typed])
        threading.Thread(target=wait_there, args=[Messages(store.clone())], daemon=True).start()
        return messages

    def wait_there(messages: Messages) -> None:
        with suppress(RuntimeError):
            while not done.wait(0.1):
                messages.count("waits/1", 1)

    yield arrive
    done.set()


@pytest.mark.slow
def test_the_node_with_the_store_stays_until_all_have_read(
    start: Start, as_second_node: Callable[..., Messages]
) -> None:
    """Else the slower of two refused nodes has nothing to read, and ends with a traceback."""
    place = f"localhost:{free_port()}"
    node = start(*TRAIN, *NODE, f"launch.rendezvous={place}", "optimizer.lr=0.01")
    store = as_second_node(place, ["optimizer.lr=0.02"])
    store.hear("member/0")
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(timeout=3)
    store.count("read", 1)
    ((_, err),) = finish(node, status=2)
    assert "was typed on one of" in err


@pytest.mark.slow
def test_a_stranger_without_the_secret_is_refused(
    start: Start, as_second_node: Callable[..., Messages], tmp_path: Path
) -> None:
    place = f"localhost:{free_port()}"
    secret = tmp_path.with_suffix(".secret")
    secret.write_text("known to the nodes alone\n")
    node = start(*TRAIN, *NODE, f"launch.rendezvous={place}", f"launch.secret_file={secret}")
    stranger = as_second_node(place, [], "guessed by a stranger")
    with pytest.raises(UserError, match=r"launch\.secret: another secret"):
        stranger.hear("member/0")
    ((_, err),) = finish(node, status=2)
    assert err.startswith("error: launch.secret: another secret was given")
    assert len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_node_that_is_killed_before_all_are_there_may_come_again(
    start: Start, start_by: StartBy, tmp_path: Path
) -> None:
    """Also the one with the store, after which those that wait look for it again."""
    port = free_port()
    typed = ("trainer.num_nodes=3", "trainer.devices=1", f"launch.rendezvous=localhost:{port}")
    command = (sys.executable, str(ROOT / "train.py"), *TRAIN, *typed)
    host = start(*TRAIN, *typed)
    wait_until(lambda: addresses.accepts_connections("localhost", port))
    killed = start(*TRAIN, *typed)
    store = TCPStore("localhost", port, is_master=False)
    wait_until(lambda: store.add("meeting/arrived", 0) == 2)
    killed.kill()
    # Started afresh, as torch is told when it is imported to keep its stack traces to itself.
    left = start_by(*command)
    wait_until(lambda: store.add("meeting/arrived", 0) == 3)
    for node in (host, killed):
        node.kill()
    said = finish(left, start(*TRAIN, *typed), start(*TRAIN, *typed))
    assert json.loads((one_run(tmp_path) / "metrics.json").read_text())["world_size"] == 3
    (line,) = said[0][1].splitlines()
    assert f"the node that the others meet at, localhost:{port}, is gone; waiting 600 s" in line
