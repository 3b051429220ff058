"""`onecurve plan`: what a project's configuration asks for, planned and printed."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch import LightningModule
from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from torch import Tensor, nn

from .. import machine
from ..errors import UserError, plain_console
from ..launch.context import RunContext
from ..planner.estimate import Estimate
from ..planner.hardware import Hardware, named
from ..planner.layers import Tensors
from ..planner.meshes import all_meshes, best, cells, in_words, overrides, reasons
from ..planner.network import ADAMW, Network, Precision, Request, StateSize
from ..strategies.layers import find_layers
from ..strategies.mesh.sizes import Sizes
from ..strategies.pipeline.limits import available
from ..strategies.pipeline.remote import replace_tensors
from ..strategies.prepare import prepared
from ..strategies.tensor.plan import find_plan
from .run import record
from .run.instantiate import build, build_task, building
from .run.predict import first_batch, tensor_inputs
from .run.record import invocation

EXAMPLES = 2  # samples that are read from the data, for their shapes
WIDTH = 150  # of a table that goes to a file
UNFUSED = "activ. with checkpointing is of layers that are not compiled: compiled ones keep less"


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Plan, print, and leave the record of the run."""
    cfg = OmegaConf.create(config)
    request = request_of(cfg)
    fitting, others = all_meshes(request)
    facts: dict[str, Any] = {"fitting": len(fitting), "others": len(others)}
    if fitting:
        facts |= {"mesh": fitting[0].sizes.words(), "seconds": fitting[0].seconds}
    record.finished(context.run_dir, facts)
    show(request, fitting, others, cfg)
    return {}


def request_of(cfg: DictConfig) -> Request:
    """What a configuration asks to plan."""
    hardware, ranks, per_node = _ranks_of(cfg)
    plan = cfg.plan
    batch = OmegaConf.select(cfg, "data.batch_size")
    if not isinstance(batch, int):
        raise UserError(
            "data.batch_size: a plan needs the samples of a step, over all ranks; add "
            "data.batch_size=64"
        )
    network = _network_of(cfg)
    usual = Request._field_defaults
    schedules = tuple(each for each in usual["schedules"] if each in available())
    is_auto = plan.activation_checkpointing == "auto"
    return Request(
        network,
        hardware,
        ranks,
        per_node,
        batch,
        state=_optimizer_state(cfg),
        schedules=schedules if plan.schedule == "auto" else (plan.schedule,),
        microbatches=None if plan.microbatches == "auto" else plan.microbatches,
        checkpointing=usual["checkpointing"] if is_auto else (plan.activation_checkpointing,),
        free=plan.free,
    )


def _ranks_of(cfg: DictConfig) -> tuple[Hardware, int, int]:
    """The hardware, the number of ranks, and how many of them a node has.

    `trainer.devices` are those of a node, unless no node has so many: then those of all nodes.
    """
    hardware = named(cfg.plan.gpu)
    devices = machine.local_devices(cfg.trainer, one_device=False)
    nodes = machine.num_nodes(cfg.trainer)
    if cfg.trainer.devices in ("auto", -1, "-1"):
        devices = min(hardware.per_node, 8)
    if devices < 1:
        raise UserError(
            f"trainer.devices={cfg.trainer.devices}: must be a number from 1, such as "
            "trainer.devices=8"
        )
    if devices <= hardware.per_node:
        return hardware, devices * nodes, devices
    needed = -(-devices // hardware.per_node)
    nodes = nodes if nodes > 1 else needed
    if devices % nodes or devices // nodes > hardware.per_node:
        raise UserError(
            f"trainer.devices={devices}: {nodes} nodes of {cfg.plan.gpu} have at most "
            f"{hardware.per_node} each; use trainer.devices={hardware.per_node} "
            f"trainer.num_nodes={needed}"
        )
    return hardware, devices, devices // nodes


def _network_of(cfg: DictConfig) -> Network:
    task = _build_without_memory(cfg)
    layers = find_layers(task)
    if layers is None:
        raise UserError(
            f"task: {type(task).__name__} has no sequence of layers to plan with; hold the network "
            "as one nn.Sequential, or add a method layers() that returns its layers in order"
        )
    _give_memory_beside(task, layers)
    inputs, targets = _examples(cfg, task)
    loss: Any = getattr(task, "loss", None)
    return Network(
        layers,
        inputs,
        loss=loss if callable(loss) and targets is not None else None,
        targets=targets,
        plan=find_plan(task, layers, None),
        precision=Precision.named(cfg.trainer.precision),
        fused=cfg.plan.compile == "layer",
    )


def _build_without_memory(cfg: DictConfig) -> LightningModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                return build_task(cfg)
        except Exception:
            # A constructor that reads values of its weights needs memory. If it fails for another
            # reason, this call shows the error.
            return build_task(cfg)


def _give_memory_beside(task: LightningModule, layers: Mapping[str, nn.Module]) -> None:
    """Give memory to the task's tensors in no layer: a loss computes with class weights, say."""
    network = nn.ModuleList(layers.values())
    inside = {id(each) for each in (*network.parameters(), *network.buffers())}
    full: dict[Tensor, Tensor] = {}
    for tensor in (*task.parameters(), *task.buffers()):
        if tensor.is_meta and id(tensor) not in inside:
            ones = torch.ones_like(tensor, device="cpu")
            is_parameter = isinstance(tensor, nn.Parameter)
            full[tensor] = nn.Parameter(ones, tensor.requires_grad) if is_parameter else ones
    replace_tensors(task.modules(), full)


def _examples(cfg: DictConfig, task: LightningModule) -> tuple[Tensors, Any]:
    data = build("data", {**cfg.data, "batch_size": EXAMPLES})
    with building("data"):
        batch = first_batch(data, "fit")
    pair = prepared(task, batch)
    return tensor_inputs(task, batch), None if pair is None else pair.targets


def _optimizer_state(cfg: DictConfig) -> StateSize:
    if "optimizer" not in cfg:
        return ADAMW
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    try:
        optimizer = instantiate(cfg.optimizer, _convert_="all")([("weight", parameter)])
        optimizer.step()
    except Exception:
        # It needs a closure, or the parameters of this task: assume AdamW.
        return ADAMW
    state = [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
    copies = sum(value.numel() / 4 for value in state if value.numel() > 1)
    return StateSize(copies, sum(value.nbytes for value in state if value.numel() <= 1))


def show(
    request: Request, fitting: list[Estimate], others: dict[Sizes, str], cfg: DictConfig
) -> None:
    """Print a plan."""
    if line := _on_one_device(request, cfg):
        print(line)
    nodes = request.ranks // request.per_node
    print(
        f"{request.ranks} ranks ({request.per_node} on each of {nodes} nodes), batches of "
        f"{request.batch}, {cfg.plan.gpu}, {cfg.trainer.precision}: {len(fitting)} meshes "
        f"fit into {in_words(request.room)}, {len(others)} do not"
    )
    if fitting:
        console = plain_console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(_fitting_table(request, fitting[: cfg.plan.top]))
    for line in reasons(others):
        print(line)
    if fitting:
        print(f"To train so: {_command(fitting[0], cfg, request)}")
    else:
        print("No mesh fits; use more devices, a smaller batch, or a GPU with more memory")


def _on_one_device(request: Request, cfg: DictConfig) -> str | None:
    """The line about a network for which one device has room: a mesh is then for speed alone."""
    alone = best(request._replace(ranks=1, per_node=1), Sizes())
    if isinstance(alone, str):
        return None
    recomputed = alone.checkpointing
    needs = f", with activation_checkpointing={recomputed}" if recomputed != "none" else ""
    return (
        f"One {cfg.plan.gpu} has room for all of it ({in_words(alone.fullest.total)} of "
        f"{in_words(request.room)}{needs}): strategy=single takes {alone.seconds * 1000:.3g} ms a "
        "step, and strategy=ddp is the simplest for more devices"
    )


def _fitting_table(request: Request, estimates: list[Estimate]) -> Table:
    title = "Meshes that fit, the fastest first: bytes of the fullest rank, and the step"
    table = Table(title=title, title_justify="left", padding=(0, 0, 0, 1), pad_edge=False)
    if request.network.fused and any(each.checkpointing != "none" for each in estimates):
        table.caption, table.caption_justify = UNFUSED, "left"
    rows = [cells(each) for each in estimates]
    for name in rows[0]:
        if name in ("mesh", "runs as"):
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def _command(each: Estimate, cfg: DictConfig, request: Request) -> str:
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    dropped = ("plan.", "trainer.devices=", "trainer.num_nodes=", "trainer.accelerator=")
    words = [word for word in typed if not word.lstrip("+").startswith((*dropped, "strategy"))]
    words.append(f"trainer.devices={request.per_node}")
    if request.ranks > request.per_node:
        words.append(f"trainer.num_nodes={request.ranks // request.per_node}")
    if request.network.fused:
        words.append("compile=layer")
    return invocation().command("train.py", *words, *overrides(each))
