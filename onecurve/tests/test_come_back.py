"""What nodes tell each other of one that is killed and comes back; the ranks are left out."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters

from onecurve.errors import UserError
from onecurve.launch import attempts, rendezvous
from onecurve.launch.listening import listening_store
from onecurve.launch.nodes.agents import Agents
from onecurve.launch.nodes.arrivals import SECONDS_BETWEEN_LOOKS, gather_living
from onecurve.launch.nodes.attempts import BACKEND, SeveralNodes
from onecurve.launch.nodes.beats import SECONDS_TO_BE_GONE
from onecurve.launch.nodes.come_back import take_place
from onecurve.launch.store import Member, Messages
from onecurve.run.outcome import RankFailed

TAKEN = UserError("launch.rendezvous=here:1: 2 nodes already meet there")
SHORT = timedelta(seconds=30)


def node(number: int, pid: int, run_dir: Path) -> Member:
    return Member("localhost", pid, str(run_dir), [], number, number == 0)


def connected_to(port: int) -> Messages:
    store = TCPStore("localhost", port, is_master=False, timeout=SHORT)
    return Messages(PrefixStore("meeting", store))


def handler(agents: Agents, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SeveralNodes:
    monkeypatch.setattr(rendezvous, "current", agents)
    folder.mkdir()
    options: dict[str, Any] = {"folder": folder, "run_dir": Path(agents.members[0].run_dir)}
    options["timeout_seconds"] = 60
    return SeveralNodes(RendezvousParameters(BACKEND, "", "run", 2, 2, None, **options))


@pytest.mark.slow
def test_a_node_that_comes_back_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = listening_store("localhost", timeout=SHORT)
    connected = partial(connected_to, server.port)

    run_dir = tmp_path / "run"
    members = [node(number, number + 1, run_dir) for number in (0, 1)]
    agents = [Agents(connected(), list(members), index, "here:1", index == 0) for index in (0, 1)]
    with ThreadPoolExecutor(4) as threads:
        first, second = (
            handler(agents[index], tmp_path / str(index), monkeypatch) for index in (0, 1)
        )
        begun = list(threads.map(SeveralNodes.next_rendezvous, (first, second)))
        assert [each.rank for each in begun] == [0, 1]
        assert attempts.told(tmp_path / "1").number == 0

        # A third is not let in while both are heard of.
        stranger = node(1, 9, tmp_path / "other")
        with pytest.raises(UserError, match="already meet there"):
            take_place(connected(), stranger, 2, True, monotonic() + 60, TAKEN)

        agents[1].beats.end()  # killed
        waits = threads.submit(first.next_rendezvous)
        new = connected()
        found, index = take_place(new, stranger, 2, True, monotonic() + 60, TAKEN)
        assert index == 1
        assert found == [members[0], stranger._replace(run_dir=str(run_dir))]
        assert not waits.done()
        back = Agents(new, found, index, "here:1", hosts=False)
        again = handler(back, tmp_path / "2", monkeypatch)
        assert first.num_nodes_waiting() == 0
        infos: list[RendezvousInfo] = [again.next_rendezvous(), waits.result(60)]
        assert [info.rank for info in infos] == [1, 0]
        ports = {info.bootstrap_store_info.master_port for info in infos}
        assert len(ports) == 1
        assert [attempts.told(tmp_path / name).number for name in "02"] == [1, 1]
        assert "node 2 of 2 (localhost) is gone; waiting 60 s" in capfd.readouterr().err

        # It dies again, and nobody comes: the one that is left says which it is.
        back.beats.end()
        sleep(SECONDS_TO_BE_GONE)
        lost = RankFailed("rank 0 failed\ngloo: connection closed", lost_contact=True)
        said = str(agents[0].agree_on(lost))
        assert said.startswith("node 2 of 2 (localhost) is gone: nothing is heard of it any more")
    agents[0].beats.end()


def test_a_node_that_was_killed_while_it_waited_is_not_waited_for() -> None:
    server = listening_store("localhost", timeout=SHORT)
    connected = partial(connected_to, server.port)

    def comes(number: int, pid: int) -> list[Member] | None:
        me = node(number, pid, Path("run"))
        return gather_living(connected(), me, 2, monotonic() + 60, "only @ came")

    killed = connected()
    assert killed.count("arrived", 1) == 1
    killed.say("member/0", node(1, 7, Path("run")))
    killed.count("waits/0", 1)
    with ThreadPoolExecutor(3) as threads:
        host = threads.submit(comes, 0, 8)
        sleep(3 * SECONDS_BETWEEN_LOOKS)
        assert not host.done()
        again = threads.submit(comes, 1, 9)
        expected = [node(0, 8, Path("run")), node(1, 9, Path("run"))]
        assert host.result(60) == again.result(60) == expected
        assert comes(1, 10) is None


def test_too_few_nodes_are_counted_as_they_are() -> None:
    server = Messages(PrefixStore("meeting", listening_store("localhost", timeout=SHORT)))
    with pytest.raises(UserError, match="only 1 of 3"):
        gather_living(server, node(0, 8, Path("run")), 3, monotonic() + 1, "only @ of 3")
