"""What is checked: tasks × strategies × precisions, what else a strategy takes, and two ranks.

The ranks of an entry train it, resume it, and compare both.
"""

import math
import shutil
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import CUDAAccelerator

from onecurve import DDP, FSDP, Pipeline, Single, Tensor
from onecurve.parity.result import LOSS, Curve, points
from onecurve.parity.runs import Comparison, Watch, plain_trainer, train_watched

from .tasks import mlp, noisy_mlp, samples, small_tokens, small_transformer

TASKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (mlp, samples),
    "transformer": (small_transformer, small_tokens),
    "dropout": (noisy_mlp, samples),
}
# A GPU draws other random numbers than a CPU: only a run and its resumed one are compared.
DRAWS_NOISE = {"dropout"}
STRATEGIES: dict[str, Callable[..., Any]] = {
    "single": Single,
    "ddp": DDP,
    "fsdp": FSDP,
    "pipeline": Pipeline,
    "tensor": Tensor,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "selective": {"activation_checkpointing": "selective"},
    "full": {"activation_checkpointing": "full"},
    "cpu_offload": {"cpu_offload": True},
}
# How far a loss may be from that of a plain Trainer in 32-true on the CPU, and how far a resumed
# run from one that was not interrupted (a GPU adds in no fixed order), each relative.
TOLERANCES = {"32-true": (1e-4, 1e-5), "bf16-mixed": (2e-2, 1e-2), "bf16-true": (5e-2, 2e-2)}


class Entry(NamedTuple):
    """A run that is compared."""

    task: str
    strategy: str
    precision: str
    option: str = ""
    ranks: int = 1
    required: bool = True
    """Whether the whole check fails with it."""

    @property
    def name(self) -> str:
        """What the page, the log and ``--only`` call it."""
        of_ranks = [f"{self.ranks} ranks"] if self.ranks > 1 else []
        words = [self.task, self.strategy, self.precision, self.option, *of_ranks]
        return " ".join(filter(None, words))

    def make_strategy(self) -> Any:
        options = OPTIONS.get(self.option, {})
        if self.ranks > 1:
            options = {**options, "backend": "gloo"}  # NCCL wants a card for each rank
        strategy = STRATEGIES[self.strategy](**options)
        strategy.compiled = "layer" if self.option == "compile" else "none"
        strategy.prints_layers = False
        return strategy


# What is combined: tasks, strategies, precisions, options; and the number of ranks. The cheap ones
# come first, and code that torch.compile makes last.
ROWS: tuple[tuple[Iterable[str], Iterable[str], Iterable[str], Iterable[str], int], ...] = (
    (["mlp", "transformer"], STRATEGIES, TOLERANCES, [""], 1),
    (DRAWS_NOISE, STRATEGIES, ["32-true"], [""], 1),
    (["transformer"], ["ddp", "fsdp", "pipeline", "tensor"], ["32-true"], [""], 2),
    (["transformer"], STRATEGIES, ["bf16-mixed"], ["selective", "full"], 1),
    (["transformer"], ["fsdp"], ["32-true", "bf16-mixed"], ["cpu_offload"], 1),
    (["transformer"], STRATEGIES, ["bf16-mixed"], ["compile"], 1),
)


def matrix(on_gpu: bool) -> list[Entry]:
    """All entries.

    For tensors of a GPU gloo carries broadcast and all_reduce, as its documentation says, which is
    what DDP needs: https://docs.pytorch.org/docs/stable/distributed.html#backends. Other strategies
    are tried on two ranks of one card, and do not count.
    """
    return [
        Entry(
            task, strategy, precision, option, ranks, not on_gpu or strategy == "ddp" or ranks == 1
        )
        for *axes, ranks in ROWS
        for task, strategy, precision, option in product(*axes)
    ]


STEPS, SAVED_AFTER = 8, 6
"""In two epochs of four; the checkpoint is inside the second."""


class OneCard(CUDAAccelerator):
    """Puts every rank onto the first GPU, where Lightning wants one for each."""

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return list(range(int(devices)))

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cuda", 0) for _ in devices]


def plain_run(task: str) -> dict[str, Any]:
    """What the others are compared with: a plain Trainer on the CPU, in float32."""
    options = {"precision": "32-true", "accelerator": "cpu"}
    run = train_watched(_comparison(task, None, options), Watch(), plain_trainer())
    return {"outcome": "measured", "loss": run.curves[LOSS]}


def check_entry(entry: Entry, device: str, plain: Curve | None) -> dict[str, Any]:
    """Train on the device, resume, and compare; empty on other ranks than the first."""
    shares_card = device == "cuda" and entry.ranks > 1
    options = {
        "precision": entry.precision,
        "accelerator": OneCard() if shares_card else device,
        "devices": entry.ranks,
    }
    runs: list[Watch] = []
    for watch in (Watch(SAVED_AFTER), Watch()):
        strategy = entry.make_strategy()
        comparison = _comparison(entry.task, strategy, options)
        resumed_from = runs[0].checkpoint if runs else None
        runs.append(train_watched(comparison, watch, {"strategy": strategy}, resumed_from))
    run, again = runs
    if dist.is_initialized():
        dist.barrier()
        if dist.get_rank():
            return {}
    assert run.checkpoint is not None
    shutil.rmtree(run.checkpoint.parent)
    after = [(step, loss) for step, loss in run.curves[LOSS] if step > SAVED_AFTER]
    resumed = _largest_difference(after, again.curves[LOSS])
    apart = None if plain is None else _largest_difference(plain, run.curves[LOSS])
    most_apart, most_resumed = TOLERANCES[entry.precision]
    reasons = [
        f"{what} is apart by {value:.1e}, and {most:.0e} is allowed"
        for what, value, most in (
            ("the loss of the CPU", apart, most_apart),
            ("the loss of a resumed run", resumed, most_resumed),
        )
        if value is not None and not value <= most
    ]
    return {
        "outcome": "differs" if reasons else "equal",
        "reason": "; ".join(reasons),
        "loss": run.curves[LOSS],
        "apart_from_cpu": apart,
        "apart_when_resumed": resumed,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _comparison(task: str, strategy: Any, options: dict[str, Any]) -> Comparison:
    return Comparison(*TASKS[task], strategy, options, STEPS, 0.0, seed=0)


def _largest_difference(one: Curve, two: Curve) -> float:
    """The largest relative difference; infinite where there is nothing to compare."""
    return max((relative for _, _, relative in points(one, two)), default=math.inf)
