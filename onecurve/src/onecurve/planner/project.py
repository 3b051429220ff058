"""`python plan.py`: what a project's configuration asks for, planned and printed."""

import warnings
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from .. import machine
from ..errors import UserError
from ..run import record
from ..run.context import RunContext
from ..run.instantiate import build_task, building
from ..strategies.layers import find_layers
from ..strategies.pipeline.limits import available
from ..strategies.prepared import prepared
from ..strategies.tensor.plan import find_plan
from .hardware import Hardware, named
from .layers import Tensors
from .meshes import all_meshes
from .network import Network, Precision
from .request import ADAMW, Request, StateSize
from .table import show

EXAMPLES = 2
"""Samples that are read from the data, for their shapes."""
SCHEDULES_OF_AUTO = ("1f1b", "interleaved_1f1b", "zbv")
CHECKPOINTING_OF_AUTO = ("none", "selective", "full")


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Plan, print, and leave the record of the run.

    Args:
        config: The resolved configuration of `plan.py`.
        context: Where the record goes.

    Raises:
        UserError: If there is nothing to plan with.
    """
    cfg = OmegaConf.create(config)
    request = request_of(cfg)
    meshes = all_meshes(request)
    facts: dict[str, Any] = {"fitting": len(meshes.fitting), "others": len(meshes.others)}
    if meshes.fitting:
        first = meshes.fitting[0]
        facts |= {"mesh": first.sizes.words(), "seconds": first.seconds}
    record.finished(context.run_dir, facts)
    show(request, meshes, cfg)
    return {}


def request_of(cfg: DictConfig) -> Request:
    """What a configuration asks to plan."""
    hardware, ranks, per_node = _ranks_of(cfg)
    plan = cfg.plan
    network = _network_of(cfg)
    batch = OmegaConf.select(cfg, "data.batch_size")
    if not isinstance(batch, int):
        raise UserError(
            "data.batch_size: a plan needs the samples of a step, over all ranks; add "
            "data.batch_size=64"
        )
    schedules = tuple(each for each in SCHEDULES_OF_AUTO if each in available())
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
        checkpointing=CHECKPOINTING_OF_AUTO if is_auto else (plan.activation_checkpointing,),
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
    nodes = nodes if nodes > 1 else -(-devices // hardware.per_node)
    if devices % nodes or devices // nodes > hardware.per_node:
        fits = -(-devices // hardware.per_node)
        raise UserError(
            f"trainer.devices={devices}: {nodes} nodes of {cfg.plan.gpu} have at most "
            f"{hardware.per_node} each; use trainer.devices={hardware.per_node} "
            f"trainer.num_nodes={fits}"
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


def _examples(cfg: DictConfig, task: LightningModule) -> tuple[Tensors, Any]:
    """Inputs of the network and targets of the first samples of the data."""
    data_config = cfg.data.copy()
    OmegaConf.set_struct(data_config, False)
    if "batch_size" in data_config:
        data_config.batch_size = EXAMPLES
    with building("data"):
        data = instantiate(data_config)
        if hasattr(data, "prepare_data"):
            data.prepare_data()
        data.setup("fit")
        batch = next(iter(data.train_dataloader()))
    if hasattr(data, "on_after_batch_transfer"):
        with building("data"):
            data.trainer = None
            batch = data.on_after_batch_transfer(batch, 0)
    pair = prepared(task, batch)
    first = batch[0] if pair is None and isinstance(batch, tuple | list) else batch
    inputs = first if pair is None else pair.inputs
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if not inputs or not all(isinstance(value, Tensor) and value.ndim for value in inputs):
        raise UserError(
            f"{type(task).__name__}: the inputs of its network are not tensors with a row for "
            "each sample; return such tensors from prepare"
        )
    return inputs, None if pair is None else pair.targets


def _optimizer_state(cfg: DictConfig) -> StateSize:
    """What the configured optimizer keeps of a parameter, found by one step."""
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
