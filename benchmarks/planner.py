"""The planner against what others published, and for networks of any size.

    python benchmarks/planner.py published     beside torchtitan's figures
    python benchmarks/planner.py tables        1 B, 8 B and 70 B on 1 to 4,096 GPUs

Without an argument: both. `published` needs a figure within 25 %.
"""

import sys
import time

from baked import print_head, print_row
from llama import planned

from onecurve.planner.estimate import Estimate
from onecurve.planner.hardware import HARDWARE
from onecurve.planner.meshes import all_meshes, in_words, runs_as
from onecurve.planner.network import Request
from onecurve.planner.pipeline import stages_of
from onecurve.strategies.mesh.sizes import Sizes

LENGTH = 8192
NEAR = 0.25
# torchtitan, docs/performance.md: Llama 3.1 8B, FSDP of 8, two sequences of 8,192 a GPU, every
# second product kept; the same compiled; an older version on 64 A100, with one sequence each (it is
# not said whether compiled); 70 B there.
PUBLISHED = (
    ("8 B, 8 H100 (500 W)", "8B", "h100-500w", 8, 2, "every second", False, 5762),
    ("8 B, 8 H100 (500 W), compiled", "8B", "h100-500w", 8, 2, "every second", True, 6667),
    ("8 B, 64 A100", "8B", "a100", 64, 1, "every second", False, 2973),
    ("70 B, 64 A100", "70B", "a100", 64, 1, "full", False, 331),
)


def published() -> bool:
    """The first figure, which was asked for, has to be near; the others are shown beside it."""
    print_head("Llama 3", "published", "planned", "ratio", "GiB of a GPU")
    near = []
    for name, size, gpu, ranks, each, again, fused, tokens in PUBLISHED:
        network = planned(size, fused=fused, length=LENGTH)
        request = Request(network, HARDWARE[gpu], ranks, 8, each * ranks)
        stages = stages_of(network.costs(each), 1, "", 1, each)
        found = Estimate(request, Sizes(shard=ranks), stages, again)
        found.simulate()
        mine = each * LENGTH / found.seconds
        near.append(abs(mine / tokens - 1) <= NEAR)
        memory = found.fullest.total / 2**30
        print_row(name, f"{tokens:,}", f"{mine:,.0f}", f"{mine / tokens:.2f}", f"{memory:.1f}")
    return near[0]


def tables() -> bool:
    """The best mesh of each network on each number of GPUs."""
    hardware = HARDWARE["h100"]
    print(f"\nLlama 3 on H100, sequences of {LENGTH}, one for each GPU, bf16-mixed\n")
    meshes = ("", "GPUs", "fit", "not", "planned in")
    print_head(*meshes, "mesh", "runs as", "a rank", "step", "tokens/s/GPU", "MFU")
    for size in ("1B", "8B", "70B"):
        network = planned(size, length=LENGTH)
        for ranks in (1, 8, 64, 1024, 4096):
            started = time.perf_counter()
            request = Request(network, hardware, ranks, min(8, ranks), ranks)
            fitting, others = all_meshes(request)
            took = time.perf_counter() - started
            cells = ["none", "", "", "", "", ""]
            if fitting:
                best = fitting[0]
                rate = request.batch * LENGTH / best.seconds / ranks
                mfu = best.flops / (best.seconds * ranks * hardware.flops)
                cells = [best.sizes.words(), runs_as(best), in_words(best.fullest.total)]
                cells += [f"{best.seconds:.2f} s", f"{rate:,.0f}", f"{mfu:.1%}"]
            counts = (f"{len(fitting):,}", f"{len(others):,}", f"{took:.1f} s")
            print_row(size, f"{ranks:,}", *counts, *cells)
    return True


if __name__ == "__main__":
    parts = {"published": published, "tables": tables}
    held = [parts[word]() for word in sys.argv[1:] or parts]
    sys.exit(not all(held))
