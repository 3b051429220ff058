"""What each rank must hold: bytes of parameters, gradients and optimizer state.

Trains a transformer for two steps under each strategy on two ranks and counts, on every rank, the
bytes of what belongs to the network, against the ideal: a half of what `single` holds. A rank under
`fsdp` may hold the largest unit besides (it is gathered to compute); one under `pipeline` cannot be
below the largest stage. Beside them, what an average of the weights takes (callbacks=ema or swa).

    python benchmarks/memory.py

Exit status 1 if fsdp is above 1.15 of the ideal plus the largest unit, or pipeline above 1.15 of
the largest stage.
"""

import json
import sys
from pathlib import Path
from typing import Any

from baked import folder_for_runs, print_head, print_row, train
from held import held, local_bytes
from lightning.pytorch import Callback

RANKS = 2
# Weights, gradients and AdamW's two moments.
COPIES = 4
TASK = (
    "model._target_=sequences.transformer",
    "+model.width=128",
    "+model.depth=8",
    "data._target_=sequences.Sequences",
    "data.batch_size=32",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "test=false",
    "callbacks=[ema]",
    "logger=csv",
    "+callbacks.count._target_=memory.Count",
)
STRATEGIES = ("single", "ddp", "fsdp", "pipeline")


class Count(Callback):
    """Writes what this rank holds at the end of the second step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if trainer.global_step < 2:
            return
        layers = [sum(p.numel() * 4 for p in layer.parameters()) for layer in pl_module.network]
        (ema,) = (each for each in trainer.callbacks if hasattr(each, "average"))
        average = sum(local_bytes(value) for value in ema.average.tensors.values())
        path = Path(trainer.default_root_dir) / f"held_{trainer.global_rank}.json"
        facts = {"held": held(trainer, pl_module), "average": average, "largest layer": max(layers)}
        path.write_text(json.dumps(facts))


def main() -> int:
    """Count, print, and say whether the limits hold."""
    found = {}
    with folder_for_runs():
        for name in STRATEGIES:
            devices = 1 if name == "single" else RANKS
            run = train(*TASK, f"strategy={name}", f"trainer.devices={devices}")
            found[name] = [json.loads(path.read_text()) for path in run.glob("held_*.json")]
    whole = sum(found["single"][0]["held"].values())
    unit = found["single"][0]["largest layer"]
    kinds = ("parameters", "gradients", "optimizer", "an average")
    print_head("MiB of the fullest rank", *kinds, "all but the average / single")
    for name, ranks in found.items():
        fullest = max((rank["held"] for rank in ranks), key=lambda held: sum(held.values()))
        average = max(rank["average"] for rank in ranks)
        megabytes = (f"{size / 2**20:.2f}" for size in (*fullest.values(), average))
        print_row(name, *megabytes, f"{sum(fullest.values()) / whole:.3f}")
    shards = max(sum(rank["held"].values()) for rank in found["fsdp"])
    stages = [sum(rank["held"].values()) for rank in found["pipeline"]]
    # The largest stage's share of the weights, four times: nothing else may be held.
    largest = COPIES * max(rank["held"]["parameters"] for rank in found["pipeline"])
    fsdp_limit = 1.15 * whole / RANKS + unit
    print(f"fsdp: {shards / fsdp_limit:.3f} of 1.15 x the ideal half plus the largest unit")
    print(f"pipeline: {max(stages) / largest:.3f} of the largest stage (limit 1.15)")
    print(f"pipeline, both ranks together: {sum(stages) / whole:.3f} of single")
    return 0 if shards <= fsdp_limit and max(stages) <= 1.15 * largest else 1


if __name__ == "__main__":
    sys.exit(main())
