"""How fast two pipeline stages are: against one process, and against a bare loop.

A network of eight equal layers is trained on the CPU with one thread a process, so that two stages
have exactly twice the machine of one. In the processes of one run our training steps alternate, ten
by ten, with those of a bare `torch.distributed.pipelining` loop over the same stages with an
optimizer of the same kind; runs under `strategy=pipeline` alternate with runs under
`strategy=single`. The limit is what the idle time at both ends of a schedule leaves:
p·m/(m+p−1) for p stages and m micro-batches.

    python benchmarks/pipeline.py [PAIRS]

Exit status 1 if the speed-up is below 0.88 of the limit, or our step more than 3 % slower than that
of the bare loop.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from baked import folder_for_runs, train
from lightning.pytorch import Callback
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STAGES = 2
BATCH = 512
SPEED_UP = 0.88
OVERHEAD = 1.03
# The first layer has no gradient of its input to compute: 1.5 times as many inputs make up for it.
TASK = (
    "model=mlp",
    "model.hidden=[1024,1024,1024,1024,1024,1024,1024,1024]",
    "data=synthetic",
    "data.image_size=39",
    f"data.batch_size={BATCH}",
    f"data.num_samples={40 * BATCH}",
    "data.num_val=64",
    "data.num_test=64",
    "trainer.max_epochs=1",
    "scheduler=none",
    "test=false",
    "callbacks=[]",
    "logger=csv",
    "+callbacks.clock._target_=pipeline.Clock",
)
BALANCE = "strategy.balance=[9,9]"


class Clock(Callback):
    """Times training steps; between them, those of a bare loop where there is a pipeline."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """One thread, whatever the strategy."""
        torch.set_num_threads(1)
        self.steps: list[float] = []
        self.bare: list[float] = []

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Every ten steps, ten of the bare loop."""
        if hasattr(trainer.strategy, "passes") and batch_idx % 10 == 5:
            self.bare += bare_loop(trainer.strategy, batch, 10)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        """Ranks end a step together: they share the outputs."""
        self.steps.append(time.perf_counter() - self.started)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The first steps also allocate."""
        if trainer.global_rank == 0:
            path = Path(trainer.default_root_dir) / "times.json"
            path.write_text(json.dumps({"steps": self.steps[5:], "bare": self.bare[1:]}))


def bare_loop(strategy: Any, batch: Any, steps: int) -> list[float]:
    """Seconds of each step of the shortest correct loop over this rank's stage."""
    inputs, targets = batch
    count = strategy.microbatches
    rank = strategy.pipeline_rank
    ((index, stage),) = strategy.passes.stages.items()
    microbatch = (inputs[: BATCH // count],)
    pipelined = PipelineStage(
        stage,
        index,
        STAGES,
        inputs.device,
        input_args=strategy.passes.boundary(microbatch, index),
        output_args=strategy.passes.boundary(microbatch, index + 1),
        group=strategy.parts_group,
    )
    schedule = Schedule1F1B(pipelined, count, loss_fn=F.cross_entropy)
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


def seconds(*strategy: str) -> dict[str, list[float]]:
    """Times of one run."""
    run = train(*TASK, *strategy)
    found: dict[str, list[float]] = json.loads((run / "times.json").read_text())
    return found


def main(pairs: int) -> int:
    """Measure in turn, print, and say whether the limits hold."""
    held = True
    print("micro-batches  speed-up  bubble limit  share  limit   step / bare loop's  limit")
    with folder_for_runs():
        for count in (2, 4, 8):
            options = ("strategy=pipeline", f"strategy.microbatches={count}", BALANCE)
            ratios, ours, bare = [], [], []
            for _ in range(pairs):
                single = statistics.median(seconds("strategy=single")["steps"])
                times = seconds(*options)
                ratios.append(single / statistics.median(times["steps"]))
                ours += times["steps"]
                bare += times["bare"]
            limit = STAGES * count / (count + STAGES - 1)
            share = statistics.median(ratios) / limit
            overhead = statistics.median(ours) / statistics.median(bare)
            held &= share >= SPEED_UP and overhead <= OVERHEAD
            print(
                f"{count:13}{statistics.median(ratios):10.2f}{limit:14.2f}{share:7.2f}"
                f"{SPEED_UP:7.2f}{overhead:21.3f}{OVERHEAD:7.2f}",
                flush=True,
            )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
