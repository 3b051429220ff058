"""What a plan says that ranks hold is what is counted in a rank of a real run, by kind."""

import json
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, one_of_a_kind
from held import held, local_bytes
from lightning.pytorch import Callback
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from onecurve.app.plan import request_of
from onecurve.planner.estimate import Estimate
from onecurve.planner.network import Request
from onecurve.planner.pipeline import stages_of
from onecurve.strategies.mesh.sizes import Sizes


@dataclass(eq=False)
class Packed:
    """What a graph keeps of a tensor, which would keep the graph."""

    tensor: Tensor


class Saved:
    """Bytes that wait for backward passes, by storage; parameters are no activations."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.owners: Counter[int] = Counter()
        self.now = self.most = 0
        self.hooks = saved_tensors_hooks(self.pack, lambda packed: packed.tensor)

    def pack(self, tensor: Tensor) -> Packed:
        packed, storage = Packed(tensor), tensor.untyped_storage()
        if not self.is_parameter(tensor):
            self.count(1, storage.data_ptr(), storage.nbytes())
            weakref.finalize(packed, self.count, -1, storage.data_ptr(), storage.nbytes())
        return packed

    def count(self, more: int, address: int, size: int) -> None:
        before = self.owners[address]
        self.owners[address] += more
        if not before or not self.owners[address]:
            self.now += more * size
            self.most = max(self.most, self.now)

    def is_parameter(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        # FSDP2 puts what it has gathered into the place of its shards.
        return any(
            address == getattr(each, "_local_tensor", each).untyped_storage().data_ptr()
            for each in self.module.parameters()
            if not each.is_meta
        )


class Count(Callback):
    """Writes what this rank holds at the end of the second step: `held_RANK.json`."""

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            self.saved = Saved(pl_module)
            self.saved.hooks.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx != 1:
            return
        self.saved.hooks.__exit__(None, None, None)
        buffers = sum(map(local_bytes, pl_module.buffers()))
        facts = {"activations": self.saved.most, "buffers": buffers, **held(trainer, pl_module)}
        path = Path(trainer.default_root_dir) / f"held_{trainer.global_rank}.json"
        path.write_text(json.dumps(facts))


KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
FEW = (
    *("trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.limit_val_batches=0"),
    *("test=false", "monitor=train/loss", "mode=min"),
    "+callbacks.count._target_=test_planner_bytes.Count",
)
# By a batch, as the plan divides it: not by its parameters; the batch is cut into views.
LENET = ("model=lenet", "data.image_size=32", "+task.example_shape=[64,1,32,32]")
TRANSFORMER = (
    "model._target_=sequences.transformer",
    "+model.width=32",
    "data._target_=sequences.Sequences",
)
HALF = "trainer.precision=bf16-mixed"
RECOMPUTED = "strategy.activation_checkpointing=true"
COMPILED = ("compile=layer", "compile_backend=aot_eager_decomp_partition")  # as inductor, no code
BOTH = ("strategy=mesh", "strategy.pipeline=2", "trainer.devices=4")
CASES: dict[str, tuple[Sizes, tuple[str, ...]]] = {
    "fsdp": (Sizes(shard=2), ("strategy=fsdp", *TRANSFORMER)),
    "tensor": (Sizes(tensor=2), ("strategy=tensor", "model=mlp")),
    "1f1b": (Sizes(pipeline=2), ("strategy=pipeline", "strategy.schedule=1f1b", *LENET)),
    "compiled": (Sizes(), ("strategy=single", *COMPILED, HALF, *TRANSFORMER)),
    "pipeline of shards": (Sizes(pipeline=2, shard=2), (*BOTH, *TRANSFORMER)),
    "fsdp, 16 bits": (Sizes(shard=2), ("strategy=fsdp", HALF, *TRANSFORMER)),
    "fsdp, recomputed": (Sizes(shard=2), ("strategy=fsdp", RECOMPUTED, *TRANSFORMER)),
}


def planned(run: Any, sizes: Sizes, checkpointing: str) -> list[Any]:
    """What the plan of a run's own configuration says of each rank of a pipeline."""
    config = OmegaConf.load(run / "config.yaml")
    auto = dict.fromkeys(("schedule", "microbatches"), "auto")
    compiled = "layer" if config.compile == "layer" else "none"
    config.plan = {"gpu": "cpu", "free": 0.0, "compile": compiled, **auto}
    config.plan.activation_checkpointing = "none"
    request: Request = request_of(config)
    share = request.batch // sizes.data_parallel
    schedule, microbatches = ("1f1b", 4) if sizes.pipeline > 1 else ("", 1)
    stages = stages_of(
        request.network.costs(share), sizes.pipeline, schedule, microbatches, share / microbatches
    )
    return Estimate(request, sizes, stages, checkpointing).ranks


@pytest.mark.compares
@pytest.mark.parametrize("case", one_of_a_kind(CASES, kept=("fsdp", "tensor", "1f1b", "compiled")))
def test_a_plan_says_what_each_rank_holds(train: Cli, case: str) -> None:
    """Every kind on every rank, to 5 %."""
    sizes, typed = CASES[case]
    run = train(*FEW, *typed).run
    expected = planned(run, sizes, "full" if RECOMPUTED in typed else "none")
    ranks = [json.loads(path.read_text()) for path in sorted(run.glob("held_*.json"))]
    assert len(ranks) == sizes.ranks
    for rank, counted in enumerate(ranks):
        one = expected[sizes.coordinates(rank).pipeline]
        for kind in KINDS:
            assert getattr(one, kind) == pytest.approx(counted[kind], rel=0.05, abs=64), kind
