"""What is checked: tasks × strategies × precisions, what else a strategy takes, and two ranks."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import DDP, FSDP, Pipeline, Single, Tensor
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
# How far a loss may be from that of a plain Trainer in 32-true on the CPU, and how far a resumed
# run from one that was not interrupted (a GPU adds in no fixed order), each relative.
TOLERANCES = {"32-true": (1e-4, 1e-5), "bf16-mixed": (2e-2, 1e-2), "bf16-true": (5e-2, 2e-2)}

LARGE = "large fsdp bf16-mixed compile"
"""The one that is measured: see `large.py`."""


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
        """What trains it."""
        options: dict[str, Any] = {}
        if self.option in ("selective", "full"):
            options["activation_checkpointing"] = self.option
        elif self.option == "cpu_offload":
            options["cpu_offload"] = True
        if self.ranks > 1:
            options["backend"] = "gloo"  # NCCL wants a card for each rank
        strategy = STRATEGIES[self.strategy](**options)
        strategy.compiled = "layer" if self.option == "compile" else "none"
        strategy.prints_layers = False
        return strategy


def matrix(on_gpu: bool) -> list[Entry]:
    """All entries: the cheap ones first, and code that torch.compile makes last."""
    text = "transformer"
    plain = [
        Entry(task, strategy, precision)
        for task in TASKS
        if task not in DRAWS_NOISE
        for strategy in STRATEGIES
        for precision in TOLERANCES
    ]
    noisy = [Entry(task, each, "32-true") for task in DRAWS_NOISE for each in STRATEGIES]
    # For tensors of a GPU gloo carries broadcast and all_reduce, as its documentation says, which
    # is what DDP needs: https://docs.pytorch.org/docs/stable/distributed.html#backends
    together = [
        Entry(text, strategy, "32-true", ranks=2, required=strategy == "ddp" or not on_gpu)
        for strategy in STRATEGIES
        if strategy != "single"
    ]
    again = [
        Entry(text, strategy, "bf16-mixed", how)
        for strategy in STRATEGIES
        for how in ("selective", "full")
    ]
    offloaded = [Entry(text, "fsdp", each, "cpu_offload") for each in ("32-true", "bf16-mixed")]
    compiled = [Entry(text, strategy, "bf16-mixed", "compile") for strategy in STRATEGIES]
    return [*plain, *noisy, *together, *again, *offloaded, *compiled]
