"""How fast two pipeline stages are: against one process, and against a bare loop.

A network of eight equal layers is trained on the CPU with one thread a process, so that two stages
have exactly twice the machine of one. A run under `strategy=single` and one under
`strategy=pipeline` stand side by side and take turns: a few steps of the one, a few of the other
while the first waits, a few of a bare `torch.distributed.pipelining` loop over the same stages with
an optimizer of the same kind. A machine that is slow for a while is so for all three. The limit is
what the idle time at both ends of a schedule leaves: p·m/(m+p−1) for p stages and m micro-batches.

    python benchmarks/pipeline.py [TURNS]

Exit status 1 if the speed-up is below 0.88 of the limit, or our step more than 3 % slower than that
of the bare loop.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from baked import PROJECT, folder_for_runs
from lightning.pytorch import Callback
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

STAGES = 2
# So many that a micro-batch of an eighth still fills a matrix product, and the time in which its
# gradients are added to those of the others is small beside it.
BATCH = 4096
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEPS_IN_A_TURN = 2
SPEED_UP = 0.88
OVERHEAD = 1.03
# The first layer has no gradient of its input to compute: 1.5 times as many inputs make up for it.
TASK = (
    "model=mlp",
    "model.hidden=[864,864,864,864,864,864,864,864]",
    "data=synthetic",
    "data.image_size=36",
    f"data.batch_size={BATCH}",
    "data.num_val=64",
    "data.num_test=64",
    "trainer.max_epochs=1",
    "trainer.limit_val_batches=0",
    "scheduler=none",
    "test=false",
    "callbacks=[]",
    "logger=csv",
    "+callbacks.clock._target_=pipeline.Clock",
)
RUNS = {
    "single": ("strategy=single",),
    "pipeline": ("strategy=pipeline", "strategy.balance=[9,9]"),
}


class Clock(Callback):
    """Times training steps in turns with those of another process.

    The turn is a byte in a named pipe; a process that waits for it reads, and costs nothing.
    """

    def __init__(self, name: str, other: str) -> None:
        self.name = name
        # Open for both, so that opening does not wait for the other side.
        self.mine = os.open(f"{name}.turn", os.O_RDWR)
        self.others = os.open(f"{other}.turn", os.O_RDWR)
        self.times: dict[str, list[float]] = {"steps": [], "bare": []}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """One thread, whatever the strategy."""
        torch.set_num_threads(1)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Wait for the turn; the other ranks of a pipeline wait for rank 0."""
        if batch_idx % STEPS_IN_A_TURN == 0:
            if trainer.global_rank == 0:
                os.read(self.mine, 1)
            trainer.strategy.barrier()
        self.batch = batch
        self.started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ranks end a step together: they share the outputs."""
        self.times["steps"].append(time.perf_counter() - self.started)
        if batch_idx % STEPS_IN_A_TURN == STEPS_IN_A_TURN - 1:
            if trainer.strategy.parallelisms:
                self.times["bare"] += bare_loop(trainer.strategy, self.batch, STEPS_IN_A_TURN)
            if trainer.global_rank == 0:
                os.write(self.others, b".")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The first turn also allocates."""
        if trainer.global_rank == 0:
            kept = {name: times[STEPS_IN_A_TURN:] for name, times in self.times.items()}
            Path(f"{self.name}.json").write_text(json.dumps(kept))


def bare_loop(strategy: Any, batch: Any, steps: int) -> list[float]:
    """Seconds of each step of the shortest correct loop over this rank's stage."""
    inputs, targets = batch
    (axis,) = strategy.parallelisms
    count = axis.options.microbatches
    rank = strategy.global_rank
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
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    times = []
    for _ in range(steps + 1):
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()
        dist.barrier()
        times.append(time.perf_counter() - started)
    # The first makes the connections.
    return times[1:]


def measure(schedule: str, microbatches: int, turns: int) -> dict[str, list[float]]:
    """Seconds of the steps of both runs and of the bare loop, in the order they were made."""
    for name in RUNS:
        os.mkfifo(f"{name}.turn")
    # Held open here, so that a turn given to a run that has ended is not an error.
    turn = {name: os.open(f"{name}.turn", os.O_RDWR) for name in RUNS}
    importable = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    processes = []
    for name, other in (("single", "pipeline"), ("pipeline", "single")):
        command = [
            sys.executable,
            str(PROJECT / "train.py"),
            *TASK,
            *RUNS[name],
            f"data.num_samples={turns * STEPS_IN_A_TURN * BATCH}",
            f"+callbacks.clock.name={name}",
            f"+callbacks.clock.other={other}",
        ]
        if name == "pipeline":
            command += [f"strategy.schedule={schedule}", f"strategy.microbatches={microbatches}"]
        processes.append(
            subprocess.Popen(
                command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": importable}
            )
        )
    os.write(turn["single"], b".")
    while any(process.poll() is None for process in processes):
        time.sleep(0.5)
        if any(process.poll() for process in processes):
            for process in processes:
                process.terminate()
            sys.exit("a run failed; what it said is above")
    found = {name: json.loads(Path(f"{name}.json").read_text()) for name in RUNS}
    return {
        "single": found["single"]["steps"],
        "pipeline": found["pipeline"]["steps"],
        "bare": found["pipeline"]["bare"],
    }


def main(turns: int) -> int:
    """Measure in turn, print, and say whether the limits hold."""
    held = True
    print("schedule  micro-batches  bubble limit  share of it: median    best  step / bare loop's")
    for schedule, count in product(SCHEDULES, (2, 4, 8)):
        with folder_for_runs():
            times = measure(schedule, count, turns)
        limit = STAGES * count / (count + STAGES - 1)
        best = min(times["single"]) / min(times["pipeline"]) / limit
        median = median_ratio(times["single"], times["pipeline"]) / limit
        overhead = median_ratio(times["pipeline"], times["bare"])
        held &= median >= SPEED_UP and overhead <= OVERHEAD
        print(
            f"{schedule:10}{count:13}{limit:14.2f}{median:21.2f}{best:8.2f}{overhead:20.3f}",
            flush=True,
        )
    print(f"{'limits':37}{SPEED_UP:21.2f}{OVERHEAD:28.2f}")
    return 0 if held else 1


def median_ratio(a: list[float], b: list[float]) -> float:
    """The median over turns; the steps of one turn stand next to each other in time."""
    starts = range(0, len(a), STEPS_IN_A_TURN)
    turns = [slice(start, start + STEPS_IN_A_TURN) for start in starts]
    return statistics.median(sum(a[turn]) / sum(b[turn]) for turn in turns)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
