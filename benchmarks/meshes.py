"""Every mesh of up to eight ranks: whether it trains as one process does.

A small transformer in processes of this machine, on every mesh whose axes have 2, 4 or 8 ranks and
of which at most three are used, and under the strategies that are points of it.

    python benchmarks/meshes.py [--all] [WORD ...]

A cell is the largest relative difference of the per-step `train/loss`, and of the validation's at
the end, from `single`, with AdamW, clipping, and an uneven last batch of one sample. In float64
every mesh, over 12 steps and accumulated by two; in float32 over 54 steps some, or all with
--all. With words, such as "context 2", only meshes in whose names they all are. Exit status 1 if a
cell is above its limit.
"""

import sys
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from small_transformer import trained

import onecurve
from onecurve.testing.runs import largest_difference

AXES = ("replicate", "pipeline", "shard", "context", "tensor")
PRESETS = ("ddp", "fsdp", "pipeline", "tensor")
# Five whole batches, and one of a single sample for up to eight ranks.
SAMPLES = 81
COLUMNS: dict[str, dict[str, Any]] = {
    "float64": {"precision": "64-true", "max_epochs": 2, "accumulate_grad_batches": 2},
    "float32": {"precision": "32-true", "max_epochs": 9, "check_val_every_n_epoch": 3},
}
LIMITS = {"float64": 1e-11, "float32": 1e-5}
# Each axis, and what is likely to be used together.
IN_FLOAT32 = (
    *("strategy=ddp 2", "strategy=fsdp 2", "strategy=pipeline 2", "strategy=tensor 2"),
    *("context 2", "pipeline 4", "tensor 8", "shard 2 x context 2", "shard 2 x tensor 2"),
    *("pipeline 2 x tensor 2", "pipeline 2 x shard 2", "context 2 x tensor 2"),
    *("pipeline 2 x shard 2 x tensor 2", "replicate 2 x shard 2 x tensor 2"),
)
Mesh = dict[str, int]


def meshes() -> Iterator[tuple[str, Mesh]]:
    """Names and sizes, the fewest ranks first; a preset has its ranks under its own name."""
    for preset, ranks in product(PRESETS, (2, 4)):
        yield f"strategy={preset} {ranks}", {preset: ranks}
    for sizes in sorted(product((1, 2, 4, 8), repeat=len(AXES)), key=prod):
        mesh = {axis: size for axis, size in zip(AXES, sizes, strict=True) if size > 1}
        if 1 < prod(sizes) <= 8 and len(mesh) <= 3:
            yield " x ".join(f"{axis} {size}" for axis, size in mesh.items()), mesh


def losses(name: str, sizes: Mesh, columns: tuple[str, ...]) -> dict[str, list[float]]:
    """Of a rank's steps, and at the end of the last validation."""
    found = {}
    for column in columns:
        options = {"samples": SAMPLES, "gradient_clip_val": 0.3, **COLUMNS[column]}
        trainer = trained(name, sizes, **options)
        last = trainer.callback_metrics["val/loss"].item()
        found[column] = [*trainer.lightning_module.losses, last]
    return found


def parity(*words: str) -> bool:
    """Each mesh in processes of its own, so that one that fails ends no other."""
    print(f"{'largest difference of a loss':36}" + "".join(f"{name:>12}" for name in COLUMNS))
    single = losses("single", {}, tuple(COLUMNS))
    held = True
    for name, mesh in meshes():
        if not all(word in name for word in words if word != "--all"):
            continue
        both = "--all" in words or name in IN_FLOAT32
        columns = tuple(COLUMNS) if both else ("float64",)
        print(f"{name:36}", end="", flush=True)
        try:
            made = next(iter(mesh)) if "=" in name else "mesh"
            found = onecurve.launch(losses, made, mesh, columns, devices=prod(mesh.values()))
        except (onecurve.RankFailed, onecurve.UserError) as error:
            held = False
            print(f"failed: {error}", flush=True)
            continue
        for column in columns:
            worst = largest_difference(single[column], found[column])
            held &= worst <= LIMITS[column]
            print(f"{worst:11.1e}{' ' if worst <= LIMITS[column] else '!'}", end="", flush=True)
        print(flush=True)
    return held


if __name__ == "__main__":
    sys.exit(not parity(*sys.argv[1:]))
