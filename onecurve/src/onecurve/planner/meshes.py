"""All meshes of a number of ranks: estimates of those that fit, and why the others do not.

Then both in words: cells of a table, overrides that choose a mesh, reasons.
"""

from collections import Counter
from collections.abc import Iterator

from ..errors import UserError
from ..strategies.mesh.sizes import Sizes
from ..strategies.pipeline.limits import SCHEDULES, takes
from .estimate import Estimate, is_sharded
from .network import Request
from .pipeline import stages_of

MICROBATCHES_PER_RANK = (1, 2, 4, 8)  # of a pipeline, where plan.microbatches=auto
MOST_CONTEXT = 16
"""Ranks of a context group: each has all keys and values, so that more of them are no gain."""
SIMULATED = 24  # for how many of the fastest the schedule is simulated, and not in closed form
MOST_PASSES = 512  # micro-batches times ranks up to which schedules other than 1f1b are tried
# Strategies that have one axis beside replicas.
PRESETS = {"shard": "fsdp", "pipeline": "pipeline", "tensor": "tensor"}
MEMORY = ("weights", "grads", "optim.", "activ.", "buffers", "working")  # the fields of `Bytes`


def all_meshes(request: Request) -> tuple[list[Estimate], dict[Sizes, str]]:
    """Every mesh whose axes' product is the number of ranks.

    Returns:
        Those that fit, the fastest first; and why the others do not.
    """
    fitting = []
    others: dict[Sizes, str] = {}
    for sizes in products(request.ranks):
        found = why_not(request, sizes) or best(request, sizes)
        if isinstance(found, str):
            others[sizes] = found
        else:
            fitting.append(found)
    fitting.sort(key=lambda each: each.seconds)
    first = fitting[:SIMULATED]
    for each in first:
        each.simulate()
    return sorted(first, key=lambda each: each.seconds) + fitting[SIMULATED:], others


def products(ranks: int) -> Iterator[Sizes]:
    """Every mesh of a number of ranks: all ways to write it as a product of five sizes."""
    divisors = [number for number in range(1, ranks + 1) if ranks % number == 0]

    def split(rest: int, axes: int) -> Iterator[tuple[int, ...]]:
        if axes == 1:
            yield (rest,)
            return
        for first in divisors:
            if rest % first == 0:
                for others in split(rest // first, axes - 1):
                    yield (first, *others)

    for each in split(ranks, len(Sizes._fields)):
        yield Sizes(*each)


def why_not(request: Request, sizes: Sizes) -> str:
    """Why a mesh is impossible, whatever it would hold; empty if it is not."""
    network = request.network
    if sizes.data_parallel > request.batch:
        return f"a batch of {request.batch} has fewer samples than data-parallel ranks"
    if sizes.pipeline > len(network.layers):
        return f"more pipeline stages than its {len(network.layers)} layers"
    if sizes.tensor > 1:
        if not network.has_tensor_plan:
            return "tensor: the network has no tensor_plan, so no layer is sharded"
        if sizes.tensor > request.per_node:
            return f"tensor groups over more than one node of {request.per_node}"
        if size := network.undivided(sizes.tensor):
            return f"tensor: {size}"
    if sizes.context > 1:
        if network.length is None or not network.attends:
            return "context: the network has no attention over one sequence of positions"
        if network.length % sizes.context:
            return f"context: sequences of {network.length} cannot be divided by the group"
        if sizes.context > MOST_CONTEXT:
            return f"context groups of more than {MOST_CONTEXT} ranks"
    return ""


def best(request: Request, sizes: Sizes) -> Estimate | str:
    """The fastest way to run a mesh, or why none fits."""
    fastest: Estimate | None = None
    reason = ""
    share = -(-request.batch // sizes.data_parallel)
    costs = request.network.costs(share)
    for schedule, count in _ways(request, sizes):
        try:
            stages = stages_of(costs, sizes.pipeline, schedule, count, share / count)
        except UserError:
            reason = reason or "fewer layers than stages"
            continue
        needed = float("inf")
        for checkpointing in request.checkpointing:
            this = Estimate(request, sizes, stages, checkpointing)
            needed = min(needed, this.fullest.total)
            if needed <= request.room:
                this.simulate(exact=False)
                fastest = this if fastest is None or this.seconds < fastest.seconds else fastest
                break
        else:
            reason = f"memory: needs {in_words(needed)} of {in_words(request.room)}"
    return fastest or reason or "no schedule takes a share of the batch"


def _ways(request: Request, sizes: Sizes) -> Iterator[tuple[str, int]]:
    if sizes.pipeline == 1:
        yield "", 1
        return
    # Ranks whose shares differed would need different numbers of micro-batches.
    share = request.batch // sizes.data_parallel
    for schedule in request.schedules:
        if SCHEDULES[schedule].splits_backward and is_sharded(sizes):
            continue
        # Building the order of the other schedules takes long for many passes, and gains little.
        most = None if schedule == "1f1b" or len(request.schedules) == 1 else MOST_PASSES
        numbers = {request.microbatches} if request.microbatches else _numbers(share, sizes)
        for number in sorted(filter(None, numbers)):
            within = number <= share and (most is None or number * sizes.pipeline <= most)
            if within and share % number == 0 and takes(schedule, number, sizes.pipeline):
                yield schedule, number


def _numbers(share: int, sizes: Sizes) -> set[int]:
    divisors = [number for number in range(1, share + 1) if share % number == 0]
    wanted = [times * sizes.pipeline for times in MICROBATCHES_PER_RANK]
    return {min(divisors, key=lambda each: abs(each - number)) for number in wanted}


def in_words(size: float) -> str:
    """Bytes with a unit."""
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= power:
            return f"{size / power:.3g} {unit}"
    return f"{size:.0f} B"


def cells(estimate: Estimate) -> dict[str, str]:
    """A row of the table, by column: a mesh, the memory of its fullest rank, and its speed."""
    request, seconds = estimate.request, estimate.seconds
    per_step = request.batch * (request.network.length or 1)
    mfu = estimate.flops / (seconds * request.ranks * request.hardware.flops)
    return {
        "mesh": estimate.sizes.words(),
        "runs as": runs_as(estimate),
        **dict(zip(MEMORY, map(in_words, estimate.fullest), strict=True)),
        "all": in_words(estimate.fullest.total),
        "idle": f"{estimate.idle:.0%}" if estimate.sizes.pipeline > 1 else "",
        "step": f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms",
        "tokens/s" if request.network.length else "samples/s": f"{per_step / seconds:,.0f}",
        "MFU": f"{mfu:.1%}",
    }


def runs_as(estimate: Estimate) -> str:
    """The schedule, micro-batches and activation checkpointing of a mesh."""
    words = []
    if estimate.sizes.pipeline > 1:
        words.append(f"{estimate.stages.schedule}, {estimate.stages.microbatches}")
    if estimate.checkpointing != "none":
        words.append(f"{estimate.checkpointing} checkpointing")
    return "; ".join(words)


def reasons(others: dict[Sizes, str]) -> list[str]:
    """A line for each reason, the most frequent first, with an example."""
    kinds = Counter(reason.partition(": needs")[0] for reason in others.values())
    lines = []
    for kind, count in kinds.most_common():
        sizes, reason = next(item for item in others.items() if item[1].startswith(kind))
        lines.append(f"do not fit ({count}): {reason} (such as {sizes.words()})")
    return lines


def overrides(estimate: Estimate) -> list[str]:
    """The overrides that choose a mesh: a preset where there is one."""
    sizes, stages = estimate.sizes, estimate.stages
    used = {axis: size for axis, size in sizes._asdict().items() if size > 1}
    replicas = [f"strategy.replicas={sizes.replicate}"] if sizes.replicate > 1 else []
    others = [axis for axis in used if axis != "replicate"]
    if not others:
        words = ["strategy=ddp" if used else "strategy=single"]
    elif len(others) == 1 and others[0] in PRESETS:
        words = [f"strategy={PRESETS[others[0]]}", *replicas]
    else:
        words = ["strategy=mesh", *(f"strategy.{axis}={size}" for axis, size in used.items())]
    if sizes.pipeline > 1:
        words.append(f"strategy.schedule={stages.schedule}")
        words.append(f"strategy.microbatches={stages.microbatches}")
    if estimate.checkpointing != "none":
        words.append(f"strategy.activation_checkpointing={estimate.checkpointing}")
    return words
