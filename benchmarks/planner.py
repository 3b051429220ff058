"""The planner against what others published: torchtitan's figures, which nothing was fitted to.

    python benchmarks/planner.py

Exit status 1 if the first figure, which was asked for, is not within 25 %.
"""

import sys

from baked import print_head, print_row
from llama import planned

from onecurve.planner.estimate import Estimate
from onecurve.planner.hardware import HARDWARE
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


def main() -> int:
    """Plan each, and print it beside what was published."""
    print_head("Llama 3", "published", "planned", "ratio", "GiB of a GPU")
    ratios = []
    for name, size, gpu, ranks, each, again, fused, tokens in PUBLISHED:
        network = planned(size, fused=fused, length=LENGTH)
        request = Request(network, HARDWARE[gpu], ranks, 8, each * ranks)
        stages = stages_of(network.costs(each), 1, "", 1, each)
        found = Estimate(request, Sizes(shard=ranks), stages, again)
        found.simulate()
        mine, memory = each * LENGTH / found.seconds, found.fullest.total / 2**30
        ratios.append(mine / tokens)
        print_row(name, f"{tokens:,}", f"{mine:,.0f}", f"{ratios[-1]:.2f}", f"{memory:.1f}")
    return int(abs(ratios[0] - 1) > NEAR)


if __name__ == "__main__":
    sys.exit(main())
