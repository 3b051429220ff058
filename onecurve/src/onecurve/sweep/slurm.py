"""Jobs of a sweep that are jobs of Slurm: on how many nodes, and with how many ranks there."""

from pathlib import Path

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from .. import machine, surroundings
from ..errors import UserError
from ..launch.meeting import meet as meet_members
from ..run.context import RunContext
from ..run.hidden import typed


def is_queued(hydra: HydraConf | DictConfig) -> bool:
    """Whether submitit queues the jobs, and Slurm starts the tasks of each."""
    return str(hydra.launcher._target_).endswith(".SlurmLauncher")


def refuse_swept_nodes(config: DictConfig) -> None:
    """All jobs of a sweep are one array, of which every task has the same shape.

    Raises:
        UserError: If they would need different ones, or would be tried again in place.
    """
    for word in typed(config.hydra.overrides.task):
        key, _, value = word.partition("=")
        if key == "trainer.num_nodes" and not value.isdecimal() and value != "auto":
            raise UserError(
                f"{word}: all jobs of a sweep with sweep/launcher=slurm are on as many nodes; give "
                "one number, such as trainer.num_nodes=2, and type a sweep for each"
            )
    if _nodes(config) > 1 and OmegaConf.select(config, "sweep.on_failure") == "retry":
        raise UserError(
            "sweep.on_failure=retry: the ranks of several nodes end with their job; use "
            "sweep.on_failure=continue, and type the same command again for those that failed"
        )


def shape(config: DictConfig) -> dict[str, int]:
    """What the launcher is told where jobs are on several nodes: a task for each of their ranks.

    On one node a job is one task, which starts its ranks by itself.
    """
    nodes = _nodes(config)
    if nodes == 1 or not is_queued(config.hydra):
        return {}
    devices = config.trainer.devices
    # The GPUs of the nodes, which need not be those of the machine where this is typed.
    per_node = config.hydra.launcher.gpus_per_node or 1
    if devices not in ("auto", -1, "-1"):
        per_node = machine.local_devices(config.trainer, one_device=False)
    return {"nodes": nodes, "tasks_per_node": per_node}


def meet(config: DictConfig, hydra: HydraConf) -> RunContext:
    """Where Slurm has started several ranks of this job, they meet; in all else it is alone.

    Raises:
        UserError: If the others do not come.
    """
    run_dir = str(hydra.runtime.output_dir)
    if surroundings.ranks_around() is None or not is_queued(hydra):
        return RunContext(Path(run_dir))
    # Not the job's own configuration: of that Hydra's part is gone, and the meeting sets it.
    parts = {"launch": config.launch, "trainer": config.trainer}
    whole = OmegaConf.create({name: OmegaConf.to_container(parts[name]) for name in parts})
    OmegaConf.update(whole, "hydra", OmegaConf.create(OmegaConf.to_container(hydra)))
    OmegaConf.update(whole, "hydra.run.dir", run_dir)
    return meet_members(whole)


def _nodes(config: DictConfig) -> int:
    nodes = OmegaConf.select(config, "trainer.num_nodes")
    return nodes if isinstance(nodes, int) else 1
