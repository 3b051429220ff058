"""Ranks that stay from one run to the next; their process groups do not.

Each of gloo's groups has a thread that wakes a hundred times a second: those of all the runs of a
session would leave the tests half of the processor.

For runs that must succeed, whose numbers a test reads: most of what a short run of two ranks costs
is their start. How ranks are started, and how they fail, is tested with torchelastic's. A job that
fails here is shown to it, so that a test sees the failure of the launcher that we ship; it is an
error if the job succeeds there.
"""

import gc
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.tensor._redistribute import (
    _gen_transform_infos,
    clear_redistribute_planner_cache,
)
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from onecurve.errors import PROJECT
from onecurve.launch import agent, worker
from onecurve.launch.addresses import HOST, listening_store
from onecurve.launch.context import unless_stopped
from onecurve.launch.forkserver import end_with_the_parent, warm_up

# What a run leaves behind grows.
MOST_RUNS = 60
MOST_GROUPS = 1000
"""Of a run."""
NUMBERS = itertools.count(1)
by_torchelastic = agent.start_ranks


class Ranks:
    """As many processes, which wait for work."""

    def __init__(self, number: int) -> None:
        warm_up()
        context = multiprocessing.get_context("forkserver")
        pipes = [context.Pipe() for _ in range(number)]
        self.ours = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, number, theirs))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.daemon = True
            process.start()
            theirs.close()
        self.runs = 0

    def do(self, *job: Any) -> Any:
        """What rank 0 returns.

        Raises:
            EOFError: If one of them fails.
        """
        self.runs += 1
        # In that of an earlier run are the addresses of a group that has ended.
        store = listening_store(HOST)
        for pipe in self.ours:
            pipe.send((os.getcwd(), sys.path, store.port, os.environ.get(PROJECT), *job))
        results, waiting = {}, list(self.ours)
        while waiting:
            for pipe in wait(waiting):
                results[self.ours.index(pipe)] = pipe.recv()
                waiting.remove(pipe)
        for pipe in self.ours:
            pipe.send("all have done it")
        return results[0]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


RANKS: dict[int, Ranks] = {}


def start_ranks(
    work: Any, arguments: tuple[Any, ...], options: worker.RankOptions, **others: Any
) -> Any:
    """As `agent.start_ranks`, with ranks that are there already."""
    processes: int = others["processes"]
    context = options.context
    if processes > 4 or others.get("max_restarts") or (context and context.members.count > 1):
        return by_torchelastic(work, arguments, options, **others)
    if processes in RANKS and RANKS[processes].runs == MOST_RUNS:
        RANKS.pop(processes).end()
    if processes not in RANKS:
        RANKS[processes] = Ranks(processes)
    rank = replace(options, context=context and context.for_ranks(), debug_rank=0)
    try:
        result = RANKS[processes].do(work, arguments, rank)
    except EOFError:
        RANKS.pop(processes).end()
        by_torchelastic(work, arguments, options, **others)
        raise AssertionError(f"it failed in warm ranks alone: {options.logs}") from None
    unless_stopped(result)
    return result


def run(work: Callable[..., Any], *arguments: Any, processes: int = 2) -> Any:
    """What a function returns on rank 0 of so many ranks, which find it by its name."""
    return start_ranks(work, arguments, worker.RankOptions(), processes=processes)


def _serve(rank: int, number: int, parent: Connection) -> None:
    end_with_the_parent()
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    told |= {"MASTER_ADDR": HOST, "TORCHELASTIC_RUN_ID": "tests"}
    told |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ.update({name: str(value) for name, value in told.items()})
    while True:
        folder, sys.path[:], port, project, *job = parent.recv()
        os.chdir(folder)
        os.environ.pop(PROJECT, None)
        os.environ.update({} if project is None else {PROJECT: project})  # a command's, or a script
        os.environ["MASTER_PORT"] = str(port)
        parent.send(worker.main(*job))
        parent.recv()
        # Weights would be drawn in that of the run before.
        torch.set_default_dtype(torch.float32)
        end_groups()
        gc.collect()


def end_groups() -> None:
    """End those of a run; DTensor keeps groups by their names, numbers that no other group gets."""
    if distributed.is_initialized():  # a comparison ends its own
        distributed.destroy_process_group()
    distributed_c10d._world.group_count = MOST_GROUPS * next(NUMBERS)
    _clear_sharding_prop_cache()
    _gen_transform_infos.cache_clear()
    clear_redistribute_planner_cache()
