"""What a plan prints: the meshes that fit, what they send, and why the others do not fit."""

import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.table import Table

from ..plain_console import plain_console
from ..run.invocation import invocation
from ..strategies.mesh.sizes import Sizes
from .estimate import Estimate
from .meshes import Meshes, in_words
from .request import Request

KINDS = ("weights", "grads", "optim.", "activ.", "buffers", "working")
WIDTH = 150
"""Of a table that goes to a file."""
UNFUSED = "activ. is of layers that are not compiled: compiled ones keep less"


def show(request: Request, meshes: Meshes, cfg: DictConfig) -> None:
    """Print a plan."""
    console = plain_console(width=None if sys.stdout.isatty() else WIDTH)
    nodes = request.ranks // request.per_node
    console.print(
        f"{request.ranks} ranks ({request.per_node} on each of {nodes} nodes), batches of "
        f"{request.batch}, {cfg.plan.gpu}, {cfg.trainer.precision}: {len(meshes.fitting)} meshes "
        f"fit into {in_words(request.room)}, {len(meshes.others)} do not",
        highlight=False,
    )
    if meshes.fitting:
        shown = meshes.fitting[: cfg.plan.top]
        console.print(_fitting_table(request, shown))
        console.print(_sent_table(shown))
    for line in _reasons(meshes.others):
        console.print(line, highlight=False)
    if meshes.fitting:
        print(f"To train so: {_command(meshes.fitting[0], cfg, request)}")
    else:
        print("No mesh fits; use more devices, a smaller batch, or a GPU with more memory")


def _fitting_table(request: Request, estimates: list[Estimate]) -> Table:
    title = "Meshes that fit, the fastest first: bytes of the fullest rank, and the step"
    table = Table(title=title, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False)
    if request.network.fused:
        table.caption, table.caption_justify = UNFUSED, "left"
    speed = "tokens/s" if request.network.length else "samples/s"
    for name in ("mesh", "runs as"):
        table.add_column(name, overflow="fold")
    for name in (*KINDS, "all", "idle", "step", speed, "MFU"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in estimates:
        held = [in_words(size) for size in each.fullest]
        rate = request.batch / each.seconds
        length = request.network.length or 1
        mfu = each.flops / (each.seconds * request.ranks * request.hardware.flops)
        table.add_row(
            each.sizes.words(),
            runs_as(each),
            *held,
            in_words(each.fullest.total),
            f"{each.idle:.0%}" if each.sizes.pipeline > 1 else "",
            _time(each.seconds),
            f"{rate * length:,.0f}",
            f"{mfu:.1%}",
        )
    return table


def runs_as(each: Estimate) -> str:
    """The schedule, micro-batches and activation checkpointing of a mesh."""
    words = []
    if each.sizes.pipeline > 1:
        words.append(f"{each.choice.schedule}, {each.choice.microbatches}")
    if each.choice.checkpointing != "none":
        words.append(f"{each.choice.checkpointing} checkpointing")
    return "; ".join(words)


def _sent_table(estimates: list[Estimate]) -> Table:
    title = "Bytes that a rank sends in a step: inside its node + to other nodes"
    table = Table(title=title, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("mesh")
    for axis in Sizes._fields:
        table.add_column(axis, justify="right")
    for each in estimates:
        cells = []
        for axis in Sizes._fields:
            message = each.sent[axis]
            words = [in_words(message.inside)] if message.inside else []
            words += [f"+ {in_words(message.between)}"] if message.between else []
            cells.append(" ".join(words))
        table.add_row(each.sizes.words(), *cells)
    return table


def _reasons(others: dict[Sizes, str]) -> list[str]:
    """A line for each reason, with the number of meshes and an example."""
    grouped: dict[str, list[Sizes]] = {}
    for sizes, reason in others.items():
        grouped.setdefault(reason.partition(": needs")[0], []).append(sizes)
    lines = []
    for reason, group in sorted(grouped.items(), key=lambda item: -len(item[1])):
        example = group[0]
        detail = others[example].removeprefix(reason).removeprefix(": ")
        about = f"{detail} with {example.words()}" if detail else f"such as {example.words()}"
        lines.append(f"do not fit ({len(group)}): {reason} ({about})")
    return lines


def _command(each: Estimate, cfg: DictConfig, request: Request) -> str:
    """The command that trains with a mesh: the overrides of this one, and the mesh."""
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    dropped = ("plan.", "trainer.devices=", "trainer.num_nodes=", "trainer.accelerator=")
    words = [word for word in typed if not word.lstrip("+").startswith((*dropped, "strategy"))]
    words.append(f"trainer.devices={request.per_node}")
    if request.ranks > request.per_node:
        words.append(f"trainer.num_nodes={request.ranks // request.per_node}")
    if request.network.fused:
        words.append("compile=layer")
    return invocation().command("train.py", *words, *_strategy(each))


def _strategy(each: Estimate) -> list[str]:
    """The overrides that choose a mesh: a preset where there is one."""
    sizes, choice = each.sizes, each.choice
    used = {axis: size for axis, size in sizes._asdict().items() if size > 1}
    replicas = [f"strategy.replicas={sizes.replicate}"] if sizes.replicate > 1 else []
    if not used:
        words = ["strategy=single"]
    elif set(used) == {"replicate"}:
        words = ["strategy=ddp"]
    elif set(used) <= {"replicate", "shard"}:
        words = ["strategy=fsdp", *replicas]
    elif set(used) <= {"replicate", "pipeline"}:
        words = ["strategy=pipeline", *replicas]
    elif set(used) <= {"replicate", "tensor"}:
        words = ["strategy=tensor", *replicas]
    else:
        words = ["strategy=mesh", *(f"strategy.{axis}={size}" for axis, size in used.items())]
    if sizes.pipeline > 1:
        words += [
            f"strategy.schedule={choice.schedule}",
            f"strategy.microbatches={choice.microbatches}",
        ]
    if choice.checkpointing != "none":
        words.append(f"strategy.activation_checkpointing={choice.checkpointing}")
    return words


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
