"""What a rank of each mesh sends in a training step, beside the fewest messages that would do.

A small transformer of five blocks; with embedding, norm and head FSDP2 has eight units of it. The
second step is counted, by PyTorch's CommDebugMode and on the first rank.

    python benchmarks/mesh_sent.py

Above the least are what is logged and what the ranks of a global batch tell each other: at most two
all-reduces and two broadcasts. Exit status 1 if a rank sends more than that, or other messages.
"""

import sys
from collections import Counter
from math import prod
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback
from small_transformer import BATCH, BLOCKS, trained
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

import onecurve

UNITS = BLOCKS + 3
KINDS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "send": "send",
    "recv_": "receive",
    "broadcast_": "broadcast",
}
ABOVE = {"all-reduce": 2, "broadcast": 2}


class Row(NamedTuple):
    """A mesh, the fewest messages, and what they are."""

    name: str
    sizes: dict[str, int]
    least: dict[str, int]
    why: str


GATHERED = 2 * UNITS - 2
ROWS = (
    Row("ddp", {"ddp": 2}, {"all-reduce": 1}, "one bucket of gradients"),
    Row(
        "fsdp",
        {"fsdp": 2},
        {"all-gather": GATHERED, "reduce-scatter": UNITS},
        "each unit forward, all but the last two backward; the gradients of each",
    ),
    Row(
        "tensor",
        {"tensor": 2},
        {"all-reduce": 4 * BLOCKS + 4},
        "two sums a block in each direction; the embedding; the head's input backward; two of the "
        "loss, whose logits stay sharded",
    ),
    Row(
        "mesh",
        {"context": 2},
        {"all-gather": GATHERED + BLOCKS + 1, "reduce-scatter": UNITS + BLOCKS},
        "as fsdp; keys and values of each attention, and their gradients; the outputs",
    ),
    Row(
        "pipeline",
        {"pipeline": 2},
        {"send": 4, "receive": 4, "broadcast": 1},
        "each of four micro-batches there and back; the outputs, for the task's step",
    ),
    Row(
        "mesh",
        {"shard": 2, "tensor": 2},
        {
            "all-reduce": 4 * BLOCKS + 4,
            "all-gather": GATHERED,
            "reduce-scatter": UNITS,
        },
        "as fsdp and as tensor",
    ),
)


class Sent(CommDebugMode):
    """Without its look at modules, which a pipeline's break; with what is sent to one rank."""

    def __enter__(self) -> Any:
        self.advanced_module_tracker.name = "Global"
        self.advanced_module_tracker.module_parents_dict["Global"] = set()
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self, *error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in (torch.ops.c10d.send, torch.ops.c10d.recv_):
            self.comm_counts[func._overloadpacket] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


class OfSecondStep(Callback):
    """Counts from its beginning to its end."""

    def __init__(self) -> None:
        self.mode: Any = Sent()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin at the second."""
        if batch_idx == 1:
            self.mode.__enter__()

    def on_train_batch_end(self, *rest: Any) -> None:
        """End with it."""
        if rest[-1] == 1:
            self.mode.__exit__(None, None, None)


def sent(name: str, sizes: dict[str, int]) -> dict[str, int]:
    """How many messages of each kind."""
    counting = OfSecondStep()
    trained(name, sizes, samples=2 * BATCH, max_epochs=1, limit_val_batches=0, callbacks=[counting])
    counts: Counter[str] = Counter()
    for operation, count in counting.mode.get_comm_counts().items():
        word = str(operation).rpartition(".")[2]
        counts[KINDS.get(word, word)] += count
    return dict(counts)


def main() -> bool:
    """Print a line a mesh; whether all are as they should be."""
    held = True
    for row in ROWS:
        found = onecurve.launch(sent, row.name, row.sizes, devices=prod(row.sizes.values()))
        most = Counter(row.least) + Counter(ABOVE)
        right = all(
            row.least.get(kind, 0) <= found.get(kind, 0) <= most[kind] for kind in most | found
        )
        held &= right
        name = " x ".join(f"{axis} {size}" for axis, size in row.sizes.items())
        for title, counts in (("sent", found), ("least", row.least)):
            words = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            print(f"{name if title == 'sent' else '':20}{title:7}{words}")
        print(f"{'':27}{row.why}{'' if right else '  !'}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(not main())
