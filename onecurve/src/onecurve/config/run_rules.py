"""What the keys of a run, its Trainer and its processes cannot be together, one line for each."""

import json
from collections.abc import Iterator, Mapping
from math import inf
from os import environ
from shutil import which
from sys import platform
from typing import Any

from omegaconf import OmegaConf

from ..checkpoint.remote import refusal
from ..composed_run import ComposedRun
from ..launch import forkserver
from ..launch.addresses import is_host_and_port, rendezvous
from ..machine import count_cores
from ..metric_names import better
from ..surroundings import nodes_asked
from ..torch_versions import too_old

# More processes to a core only take turns, and a thousand take minutes to start.
WORKERS_TO_A_CORE = 4
WORKERS_ANYWHERE = 16
USUAL = "clang++" if platform == "darwin" else "g++"
TIMES = {"weeks", "days", "hours", "minutes", "seconds"}


def top(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the keys cannot go together."""
    mode, monitor = run.get("mode"), run.get("monitor")
    way = better(str(monitor))
    if way not in (None, mode):
        yield f"mode={mode}: monitor={monitor} is better the other way; use mode={way}"
    workers, cores = run.get("data.num_workers"), count_cores()
    ranks = 1 if run.one_process else max(1, run.devices)
    most = max(WORKERS_ANYWHERE, WORKERS_TO_A_CORE * cores) // ranks
    if isinstance(workers, int) and workers > most:
        yield (
            f"data.num_workers={workers}: at most {most} for each of the ranks here ({ranks}), as "
            f"this machine has {cores} cores; use data.num_workers={min(most, cores)}"
        )
    yield from _not_compiled(run)
    yield from _not_mirrored(run)


def _not_compiled(run: ComposedRun) -> Iterator[str]:
    """Why layers cannot be compiled."""
    asked = run.get("compile", "none")
    if asked == "none":
        return
    if run.get("compile_backend", "inductor") == "inductor" and not has_compiler():
        yield (
            f"compile={asked}: needs a C++ compiler, and neither $CXX nor {USUAL} is there; "
            f"install one, such as {USUAL}, or use compile=none"
        )
    stages = run.strategy == "pipeline" or run.get("strategy.pipeline", 1) > 1
    if asked == "whole" and stages:
        yield "compile=whole: a pipeline has some layers a rank; use compile=layer"
    if run.get("strategy.context", 1) != 1 and (old := too_old("strategy.context with compile")):
        yield old


def _not_mirrored(run: ComposedRun) -> Iterator[str]:
    """Why checkpoints cannot be put at an address."""
    settings = run.get("checkpoint")
    address = settings.get("mirror_to") if isinstance(settings, Mapping) else None
    if address is None:
        return
    if reason := refusal(str(address)):
        yield f"checkpoint.mirror_to={address}: {reason}"


def has_compiler() -> bool:
    """Whether there is the compiler that torch.compile looks for."""
    return which(environ.get("CXX", USUAL)) is not None


def trainer(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the run cannot have these devices, nodes, numbers or batches."""
    trainer, strategy = run.config.trainer, run.strategy
    if run.accelerator == "cuda" and run.most_devices == 0:
        yield (
            f"trainer.accelerator={trainer.accelerator}: no GPU is visible here; "
            "use trainer.accelerator=cpu"
        )
    if run.accelerator == "mps" and not (run.one_device and run.most_devices):
        yield (
            f"trainer.accelerator={trainer.accelerator}: Apple's GPU is for strategy=single on a "
            "Mac; use trainer.accelerator=cpu"
        )
    if run.devices < 1:
        plain: Any = OmegaConf.to_container(trainer)
        typed = json.dumps(plain["devices"]).replace('"', "")
        yield (
            f"trainer.devices={typed}: must be auto, a number from 1, or a list of GPU "
            f"numbers, such as trainer.devices={1 if run.one_device else 2}"
        )
    if run.one_device and run.devices > 1:
        yield (
            f"trainer.devices={trainer.devices}: strategy={strategy} uses one device; "
            "use trainer.devices=1, or strategy=ddp"
        )
    yield from _against_ranks(run)
    yield from _against_node(run)
    if run.one_process and run.num_nodes > 1:
        one = "trainer.num_nodes=1" if run.get("launch.nodes") is None else "launch.nodes=null"
        yield (
            f"{_asked(run)}: strategy={strategy} is one process on one node; "
            f"use {one}, or strategy=ddp launch.rendezvous=HOST:PORT"
        )
    if run.devices > run.most_devices:
        serve, only_tried = run.most_devices, ""
        if run.accelerator == "cpu" and (cores := count_cores()) < run.most_devices:
            serve, only_tried = cores, f", of which more than its {cores} cores only try things out"
        yield (
            f"trainer.devices={trainer.devices}: at most {run.most_devices} for "
            f"trainer.accelerator={run.accelerator} on this machine{only_tried}; "
            f"use trainer.devices={serve}"
        )
    if run.accelerator == "cpu" and str(run.get("trainer.precision")).startswith("16-"):
        yield (
            f"trainer.precision={trainer.precision}: float16 needs a GPU; "
            "use trainer.precision=bf16-mixed on a CPU"
        )
    yield from _against_time(run)
    if run.get("trainer.limit_val_batches") == 0 and _waits_for_validation(run):
        yield (
            f"trainer.limit_val_batches=0: callbacks wait for monitor={run.get('monitor')}, "
            "which only validation logs; add monitor=train/loss mode=min"
        )
    every, epochs = run.get("trainer.check_val_every_n_epoch"), run.get("trainer.max_epochs")
    never = isinstance(every, int) and isinstance(epochs, int) and 0 < epochs < every
    if never and not run.get("trainer.fast_dev_run") and _waits_for_validation(run):
        yield (
            f"trainer.check_val_every_n_epoch={every}: there is no validation in the epochs of "
            f"trainer.max_epochs={epochs}, and callbacks wait for monitor={run.get('monitor')}; "
            f"use trainer.check_val_every_n_epoch={epochs}, or monitor=train/loss mode=min"
        )


def _against_time(run: ComposedRun) -> Iterator[str]:
    time = run.get("trainer.max_time")
    for name, number in time.items() if isinstance(time, Mapping) else ():
        if name not in TIMES or not isinstance(number, int | float) or not 0 <= number < inf:
            yield (
                f"trainer.max_time.{name}={number}: must be a number of weeks, days, hours, "
                "minutes or seconds, such as trainer.max_time={hours:12}"
            )


def _against_ranks(run: ComposedRun) -> Iterator[str]:
    ranks = run.ranks
    if ranks is None:
        return
    if run.one_process and ranks.world_size > 1:
        yield (
            f"strategy={run.strategy}: is one process, but {ranks.starter} has started "
            f"{ranks.world_size}; type the command once without it, or use strategy=ddp"
        )
    if run.num_nodes != ranks.nodes:
        yield (
            f"trainer.num_nodes={run.num_nodes}: {ranks.starter} has started {ranks.world_size} "
            f"ranks, {ranks.on_this_node} of them here; use trainer.num_nodes=auto"
        )
    if ranks.world_size % ranks.on_this_node:
        yield (
            f"trainer.devices={run.config.trainer.devices}: {ranks.starter} has started "
            f"{ranks.world_size} ranks, {ranks.on_this_node} of them here; start as many on every "
            "node, such as with --ntasks-per-node"
        )
    if run.devices != ranks.on_this_node:
        yield (
            f"trainer.devices={run.config.trainer.devices}: {ranks.starter} has started "
            f"{ranks.on_this_node} ranks on this node; use trainer.devices=auto"
        )


def _against_node(run: ComposedRun) -> Iterator[str]:
    node = run.node
    if run.ranks is not None:
        return
    alone = "PET_NNODES=1 before the command where this pod is to run it alone"
    if node.nodes and node.nodes > 1 and run.one_process:
        yield (
            f"strategy={run.strategy}: is one process, but PET_NNODES={node.nodes}: each of these "
            f"nodes would do the whole run; use strategy=ddp, or type {alone}"
        )
    elif node.nodes and run.num_nodes != node.nodes:
        yield (
            f"trainer.num_nodes={run.num_nodes}: but PET_NNODES={node.nodes} says how "
            f"many there are; use trainer.num_nodes=auto, or type {alone}"
        )
    if node.devices and run.devices != node.devices and run.devices:
        yield (
            f"trainer.devices={run.config.trainer.devices}: strategy={run.strategy} takes "
            f"{run.devices}, but PET_NPROC_PER_NODE={node.devices}; use trainer.devices=auto with "
            f"strategy=ddp, or PET_NPROC_PER_NODE={run.devices}"
        )


def _waits_for_validation(run: ComposedRun) -> bool:
    """Whether a callback waits for a metric that only validation logs."""
    callbacks = run.get("callbacks") or {}
    monitors = [str(entry.get("monitor")) for entry in callbacks.values() if entry]
    return any(monitor.startswith("val/") for monitor in monitors)


def launch(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the processes cannot be started, or the nodes cannot meet."""
    several = not run.one_process and run.world_size > 1
    if several and run.ranks is None and not forkserver.is_here():
        yield (
            f"strategy={run.strategy}: starts its processes by {forkserver.MISSING}; "
            f"use strategy=single or strategy=dp, or {forkserver.ELSEWHERE}"
        )
    typed, nodes = run.config.launch.rendezvous, run.num_nodes
    if run.ranks is not None and typed is not None:
        yield (
            f"launch.rendezvous={typed}: {run.ranks.starter} has started the ranks, "
            "which meet by themselves; use launch.rendezvous=null"
        )
    if nodes == 1 and typed is not None:
        yield (
            f"launch.rendezvous={typed}: one node has nobody to meet; add trainer.num_nodes=2, "
            "or use launch.rendezvous=null"
        )
    if (rank := run.get("launch.debug_rank", 0)) and rank >= max(1, run.world_size):
        yield (
            f"launch.debug_rank={rank}: this run has the ranks 0 to {run.world_size - 1}; "
            "use one of them, such as launch.debug_rank=0"
        )
    yield from _nodes(run)
    # What one node ignores may be left over in its environment.
    if nodes == 1 or run.ranks is not None:
        return
    place = rendezvous(run.config)
    if place is None:
        yield (
            f"{_asked(run)}: the nodes need a place to meet; add "
            "launch.rendezvous=HOST:PORT, where HOST is one of them, to the same command on every "
            "node"
        )
    elif not is_host_and_port(place):
        yield (
            f"launch.rendezvous={place}: must be HOST:PORT with a port from 1 to 65535, such as "
            "launch.rendezvous=10.0.0.1:29500"
        )


def _asked(run: ComposedRun) -> str:
    """What says how many nodes there are."""
    asked = run.get("launch.nodes")
    return f"trainer.num_nodes={run.num_nodes}" if asked is None else f"launch.nodes={asked}"


def _nodes(run: ComposedRun) -> Iterator[str]:
    """Why there cannot be so many nodes, or this one cannot have its number."""
    asked, rank = run.get("launch.nodes"), run.get("launch.node_rank")
    if asked is not None:
        smallest, largest = nodes_asked(run.config)
        if smallest > largest:
            yield f"launch.nodes={asked}: is MIN:MAX; use launch.nodes={largest}:{smallest}"
        if run.ranks is not None:
            yield (
                f"launch.nodes={asked}: {run.ranks.starter} has started the ranks; "
                "use launch.nodes=null"
            )
        fixed = largest if smallest == largest else None
        if run.config.trainer.num_nodes not in ("auto", fixed):
            yield (
                f"launch.nodes={asked}: but trainer.num_nodes={run.config.trainer.num_nodes}; "
                "use trainer.num_nodes=auto"
            )
    if not isinstance(rank, int) or run.ranks is not None:
        return
    smallest, largest = nodes_asked(run.config)
    if smallest < largest:
        yield (
            f"launch.node_rank={rank}: nodes that come and go are numbered by torch; "
            "use launch.node_rank=null"
        )
    elif rank >= largest:
        yield (
            f"launch.node_rank={rank}: the nodes have the numbers 0 to {largest - 1}; "
            "use one of them, such as launch.node_rank=0"
        )
