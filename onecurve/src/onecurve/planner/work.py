"""What `python plan.py` does: every mesh of some devices, printed and drawn."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..errors import UserError
from ..run import record
from ..run.context import RunContext
from ..run.fit import build_task
from ..run.to_type import typed_here
from .heat_map import draw
from .measure import measure
from .measure_links import with_measured_links
from .meshes import all_meshes
from .of_project import network_of, optimizer_of, ranks_of
from .request import Request
from .table import show

AUTO = ("1f1b", "interleaved_1f1b", "zbv")
LEVELS = ("none", "selective", "full")
MOST_RANKS_TO_START = 8


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Plan.

    Args:
        config: The resolved configuration of `plan.py`.
        context: Where the run's record goes; the picture's own path is in the configuration.

    Returns:
        The best step's seconds, by name.

    Raises:
        UserError: If there is nothing to plan with.
    """
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    request = request_of(cfg)
    meshes = all_meshes(request)
    picture = None
    if cfg.plan.picture:
        picture = draw(meshes, Path(cfg.plan.picture), _title(cfg, request))
    facts: dict[str, Any] = {"fitting": len(meshes.fitting), "others": len(meshes.others)}
    if meshes.fitting:
        first = meshes.fitting[0]
        facts |= {"mesh": first.sizes.words(), "seconds": first.seconds}
    record.finished(run_dir, facts)
    show(request, meshes, cfg)
    if picture:
        print(f"Heat map: {typed_here().short(picture)}")
    return {}


def request_of(cfg: DictConfig) -> Request:
    """What a configuration asks for."""
    hardware, ranks, per_node = ranks_of(cfg)
    plan = cfg.plan
    task, network = network_of(cfg, build_task)
    batch = OmegaConf.select(cfg, "data.batch_size")
    if not isinstance(batch, int):
        raise UserError(
            "data.batch_size: a plan needs the samples of a step, over all ranks; add "
            "data.batch_size=64"
        )
    if plan.measure:
        measure(network, hardware, ranks, batch)
        if hardware.at_once and 1 < ranks <= MOST_RANKS_TO_START:
            hardware = with_measured_links(hardware, ranks)
    return Request(
        network,
        hardware,
        ranks,
        per_node,
        batch,
        state=optimizer_of(task, cfg),
        schedules=AUTO if plan.schedule == "auto" else (plan.schedule,),
        microbatches=None if plan.microbatches == "auto" else plan.microbatches,
        checkpointing=LEVELS
        if plan.activation_checkpointing == "auto"
        else (plan.activation_checkpointing,),
        free=plan.free,
    )


def _title(cfg: DictConfig, request: Request) -> str:
    return f"{request.ranks} x {cfg.plan.gpu}, batches of {request.batch}"
