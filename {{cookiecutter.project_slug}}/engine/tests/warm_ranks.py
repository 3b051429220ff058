"""Ranks that stay from one run to the next, with their process group.

For runs that must succeed, whose numbers a test reads: most of what a short run of two ranks costs
is their start. How ranks are started, and how they fail, is tested with torchelastic's; it also
does a job again that fails here.
"""

import multiprocessing
import os
import sys
import warnings
from multiprocessing.connection import Connection, wait
from typing import Any

from onecurve.launch import agent, rendezvous, worker
from onecurve.launch.forkserver import warm_up
from onecurve.launch.listening import HOST, listening_store
from onecurve.run.outcome import unless_stopped

# Every run leaves process groups behind, which hold files open.
MOST_RUNS = 60
by_torchelastic = agent.start_ranks


class Ranks:
    """As many processes, which wait for work."""

    def __init__(self, number: int) -> None:
        warm_up()
        context = multiprocessing.get_context("forkserver")
        self.store = listening_store(HOST)
        pipes = [context.Pipe() for _ in range(number)]
        self.ours = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, number, self.store.port, theirs))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.daemon = True
            process.start()
            theirs.close()
        self.runs = 0

    def do(self, *job: Any) -> Any:
        """What rank 0 returns; None if one of them fails."""
        self.runs += 1
        for pipe in self.ours:
            pipe.send((os.getcwd(), sys.path, *job))
        results, waiting = {}, list(self.ours)
        while waiting:
            for pipe in wait(waiting):
                try:
                    results[self.ours.index(pipe)] = pipe.recv()
                except EOFError:
                    return None
                waiting.remove(pipe)
        return results[0]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


RANKS: dict[int, Ranks] = {}


def start_ranks(work: Any, arguments: tuple[Any, ...], **options: Any) -> Any:
    """As `agent.start_ranks`, with ranks that are there already."""
    processes: int = options["processes"]
    if processes > 3 or options["max_restarts"] or rendezvous.current:
        return by_torchelastic(work, arguments, **options)
    if processes in RANKS and RANKS[processes].runs == MOST_RUNS:
        RANKS.pop(processes).end()
    if processes not in RANKS:
        RANKS[processes] = Ranks(processes)
    result = RANKS[processes].do(work, arguments, options["logs"])
    if result is None:
        RANKS.pop(processes).end()
        warnings.warn(f"a run failed in ranks that were warm: {options['logs']}", stacklevel=2)
        return by_torchelastic(work, arguments, **options)
    unless_stopped(result)
    return result


def _serve(rank: int, number: int, port: int, parent: Connection) -> None:
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    told |= {"MASTER_ADDR": HOST, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ.update({name: str(value) for name, value in told.items()})
    while True:
        folder, sys.path[:], *job = parent.recv()
        os.chdir(folder)
        parent.send(worker.main(*job))
