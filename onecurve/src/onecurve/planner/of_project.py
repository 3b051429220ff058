"""What a plan takes from a project's configuration: its network without memory, its devices."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.pytorch import LightningModule
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .. import machine
from ..errors import UserError
from ..run.building import building
from ..strategies.layers import find_layers
from ..strategies.prepared import prepared
from .hardware import Hardware, named
from .kinds import kinds_of
from .layer_passes import Tensors
from .network import Network
from .optimizer_state import ADAMW, StateSize, state_size
from .precision import Precision
from .tensor_plan import tensor_plan

LOOKED_AT = 2
"""Samples that are read from the data, for their shapes."""


def ranks_of(cfg: DictConfig) -> tuple[Hardware, int, int]:
    """The hardware, how many ranks there are, and how many of them a node has.

    `trainer.devices` are those of a node; a number that no node of that GPU has is that of all
    nodes together.

    Raises:
        UserError: If the nodes cannot have as many.
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


def network_of(
    cfg: DictConfig, build: Callable[[DictConfig], LightningModule]
) -> tuple[LightningModule, Network]:
    """The task, without memory where it can be built so, and its network.

    Raises:
        UserError: If its network is no sequence of layers, or gets no tensors.
    """
    task = _without_memory(cfg, build)
    layers = find_layers(task)
    if layers is None:
        raise UserError(
            f"task: {type(task).__name__} has no sequence of layers to plan with; hold the network "
            "as one nn.Sequential, or add a method layers() that returns its layers in order"
        )
    inputs, targets = _sample(cfg, task)
    loss: Any = getattr(task, "loss", None)
    return task, Network(
        layers,
        inputs,
        loss=loss if callable(loss) and targets is not None else None,
        targets=targets,
        plan=tensor_plan(task, layers, kinds_of(layers)),
        precision=Precision.named(cfg.trainer.precision),
        fused=cfg.plan.compile == "layer",
    )


def _without_memory(
    cfg: DictConfig, build: Callable[[DictConfig], LightningModule]
) -> LightningModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):
                return build(cfg)
        except Exception:
            # What looks at numbers while it is made needs them. If it cannot be made at all, that
            # is said by what follows.
            return build(cfg)


def _sample(cfg: DictConfig, task: LightningModule) -> tuple[Tensors, Any]:
    """What enters the network for the first samples of the data, and what it is compared with."""
    data_config = cfg.data.copy()
    OmegaConf.set_struct(data_config, False)
    if "batch_size" in data_config:
        data_config.batch_size = LOOKED_AT
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
    made = prepared(task, batch)
    first = batch[0] if made is None and isinstance(batch, tuple | list) else batch
    inputs = first if made is None else made.inputs
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if not inputs or not all(isinstance(value, Tensor) and value.ndim for value in inputs):
        raise UserError(
            f"{type(task).__name__}: its network gets something else than tensors with a row a "
            "sample; return these from prepare"
        )
    return inputs, None if made is None else made.targets


def optimizer_of(task: LightningModule, cfg: DictConfig) -> StateSize:
    """What the configured optimizer keeps."""
    if "optimizer" not in cfg:
        return ADAMW

    def build(named_parameters: Any) -> Any:
        return instantiate(cfg.optimizer, _convert_="all")(named_parameters)

    try:
        return state_size(build)
    except Exception:
        # Made for this task's parameters by their names: taken as AdamW.
        return ADAMW
