"""How fast two pipeline stages are: against one process, and against a bare loop.

A network of eight equal layers is trained on the CPU with one thread a process, so that two stages
have exactly twice the machine of one. They take turns inside of one run under `strategy=pipeline`:
a few of its steps; a few of a bare `torch.distributed.pipelining` loop over the same stages; a few
of the whole network in the first rank, as one process trains it, while the other waits. All have
the same optimizer. A machine that is slow for a while is so for all three. The limit is what the
idle time at both ends of a schedule leaves: p·m/(m+p−1) for p stages and m micro-batches.

    python benchmarks/pipeline.py [TURNS]

Exit status 1 if the speed-up is below 0.88 of the limit, or our step more than 3 % slower than that
of the bare loop.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from baked import folder_for_runs, median_ratio, print_head, print_row, train
from lightning.pytorch import Callback
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from my_project.models.mlp import mlp

STAGES = 2
# So many that a micro-batch of an eighth still fills a matrix product, and the time in which its
# gradients are added to those of the others is small beside it.
BATCH = 4096
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEPS_IN_A_TURN = 2
SPEED_UP = 0.88
OVERHEAD = 1.03
# The first layer has no gradient of its input to compute: 1.5 times as many inputs make up for it.
HIDDEN = [864] * 8
IMAGE_SIZE = 36
TASK = (
    "model=mlp",
    f"model.hidden={HIDDEN}".replace(" ", ""),
    "data=synthetic",
    f"data.image_size={IMAGE_SIZE}",
    f"data.batch_size={BATCH}",
    "data.num_val=64",
    "data.num_test=64",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=0",
    "scheduler=none",
    "test=false",
    "callbacks=[]",
    "logger=csv",
    "strategy=pipeline",
    "strategy.balance=[9,9]",
    "+callbacks.clock._target_=pipeline.Clock",
)


class Clock(Callback):
    """Times steps of training, and after each turn of them as many of both other loops."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"pipeline": [], "bare": [], "single": []}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """One thread, whatever the strategy."""
        torch.set_num_threads(1)
        with torch.random.fork_rng():  # ranks draw the same order of samples
            self.network = mlp(1, IMAGE_SIZE, 10, HIDDEN) if trainer.is_global_zero else None

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Both ranks begin together."""
        trainer.strategy.barrier()
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ranks end a step together: they share the outputs."""
        self.times["pipeline"].append(time.perf_counter() - self.started)
        if batch_idx % STEPS_IN_A_TURN == STEPS_IN_A_TURN - 1:
            self.times["bare"] += bare_loop(trainer.strategy, *batch)
            if self.network:
                self.times["single"] += one_process(self.network, *batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The first turn also allocates."""
        if trainer.is_global_zero:
            kept = {name: times[STEPS_IN_A_TURN:] for name, times in self.times.items()}
            (Path(trainer.default_root_dir) / "times.json").write_text(json.dumps(kept))


def bare_loop(strategy: Any, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Seconds of each step of the shortest correct loop over this rank's stage."""
    (axis,) = strategy.parallelisms
    count = axis.options.microbatches
    (stages,) = axis.stages
    ((index, stage),) = stages.modules.items()
    microbatch = (inputs[: BATCH // count],)
    pipelined = PipelineStage(
        stage,
        index,
        STAGES,
        inputs.device,
        input_args=stages.boundary(microbatch, index),
        output_args=stages.boundary(microbatch, index + 1),
        group=strategy.parts_group,
    )
    schedule = SCHEDULES[axis.options.schedule](pipelined, count, loss_fn=F.cross_entropy)

    def passes() -> None:
        dist.barrier()
        if index == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)

    return seconds_of_steps(stage, passes, after=dist.barrier)


def one_process(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Seconds of each step of the whole network in this rank."""
    return seconds_of_steps(network, lambda: F.cross_entropy(network(inputs), targets).backward())


def seconds_of_steps(
    network: nn.Module, passes: Callable[[], Any], after: Callable[[], Any] = lambda: None
) -> list[float]:
    """Of a turn, in which a step before them makes connections and allocates."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(STEPS_IN_A_TURN + 1):
        started = time.perf_counter()
        optimizer.zero_grad()
        passes()
        optimizer.step()
        after()
        times.append(time.perf_counter() - started)
    return times[1:]


def of_turns(seconds: list[float]) -> list[float]:
    """Of each turn, whose steps stand next to each other in time."""
    starts = range(0, len(seconds), STEPS_IN_A_TURN)
    return [sum(seconds[start : start + STEPS_IN_A_TURN]) for start in starts]


def main(turns: int = 10) -> int:
    """Measure in turn, print, and say whether the limits hold."""
    held = True
    bare_loops = "our step / bare loop's"
    print_head("schedule", "micro-batches", "limit by idle time", "share of it", bare_loops)
    for schedule, count in product(SCHEDULES, (2, 4, 8)):
        chosen = (f"strategy.schedule={schedule}", f"strategy.microbatches={count}")
        run = train(*TASK, *chosen, f"data.num_samples={turns * STEPS_IN_A_TURN * BATCH}")
        times = json.loads((run / "times.json").read_text())
        ours, bare, single = (of_turns(times[name]) for name in ("pipeline", "bare", "single"))
        limit = STAGES * count / (count + STAGES - 1)
        share, overhead = median_ratio(single, ours) / limit, median_ratio(ours, bare)
        held &= share >= SPEED_UP and overhead <= OVERHEAD
        print_row(schedule, count, f"{limit:.2f}", f"{share:.2f}", f"{overhead:.3f}")
    return 0 if held else 1


if __name__ == "__main__":
    with folder_for_runs():
        sys.exit(main(*map(int, sys.argv[1:])))
