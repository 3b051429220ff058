"""What a plan says of every mesh, its timeline, and the lines of the command."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Cli
from small.task import Classification
from torch import nn

import onecurve.planner.timeline as timeline
import onecurve.strategies.pipeline.limits as limits
from onecurve.planner.hardware import HARDWARE
from onecurve.planner.meshes import all_meshes, products
from onecurve.planner.network import Network, Precision, Request
from onecurve.planner.pipeline import order_of
from onecurve.strategies.mesh.sizes import Sizes

SMALL = ("model=mlp", "data.image_size=8", "plan.gpu=cpu", "data.batch_size=64")


def test_every_product_is_a_mesh_that_fits_or_has_a_reason() -> None:
    layers = {str(number): nn.Linear(2048, 2048, device="meta") for number in range(16)}
    inputs = (torch.empty(1, 2048, device="meta"),)
    plan = dict.fromkeys(layers, "colwise_gather")
    network = Network(layers, inputs, plan=plan, precision=Precision.named("bf16-mixed"))
    request = Request(network, HARDWARE["h100"], 8, 4, 64, checkpointing=("none",))
    fitting, others = all_meshes(request)
    assert len(fitting) + len(others) == len(list(products(8))) == 35
    seconds = [each.seconds for each in fitting]
    assert seconds == sorted(seconds)
    assert all(each.fullest.total <= request.room for each in fitting)
    assert "tensor groups over more than one node" in others[Sizes(tensor=8)]


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (4, 16), (2, 8), (3, 6)])
@pytest.mark.parametrize("schedule", limits.SCHEDULES)
def test_the_bubble_is_the_closed_form(schedule: str, ranks: int, microbatches: int) -> None:
    """Warm-up and drain take ranks - 1 steps: of a third of the length where backward is split."""
    per_rank = limits.SCHEDULES[schedule].stages_per_rank
    steps = per_rank * microbatches
    if schedule in ("interleaved_zero_bubble", "zbv"):
        steps *= 3
    expected = (ranks - 1) / (steps + ranks - 1)
    said = limits.idle_share(schedule, ranks, microbatches, ranks * per_rank)
    assert said == pytest.approx(expected)
    spans = timeline.simulate(order_of(schedule, ranks, microbatches), [1.0] * (ranks * per_rank))
    assert timeline.bubble(spans) == pytest.approx(expected)


class Weighted(Classification):
    """Its loss computes with a buffer of the task."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.register_buffer("class_weight", torch.ones(parts["num_classes"]))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets, self.get_buffer("class_weight"))


def test_a_plan(warm: Cli) -> None:
    task = "task._target_=test_planner.Weighted"
    outcome = warm("onecurve", "plan", *SMALL, task, "trainer.devices=4")
    _, alone, ranks = outcome.out.splitlines()[:3]
    assert re.match(
        r"One cpu has room for all of it \(.* of .*\): strategy=single takes .* ms", alone
    )
    assert ranks.startswith("4 ranks (4 on each of 1 nodes), batches of 64, cpu, 32-true")
    assert "do not fit" in outcome.out
    command = r"To train so: python \S+/train.py'? model=mlp data.image_size=8 data.batch_size=64 "
    assert re.search(command, outcome.out)
    assert outcome.metrics["status"] == "finished"
    typed = ("plan.compile=layer", "plan.activation_checkpointing=full")
    compiled = warm("onecurve", "plan", *SMALL, "trainer.devices=2", *typed).out
    assert "activ. with checkpointing is of layers that are not compiled" in compiled
    assert "compile=layer" in compiled.partition("To train so: ")[2]
    nodes = ("plan.gpu=h100", "trainer.devices=64", "trainer.num_nodes=8", "plan.top=1")
    large = warm("onecurve", "plan", *SMALL, *nodes).out
    assert "64 ranks (8 on each of 8 nodes)" in large
    assert "trainer.devices=8 trainer.num_nodes=8" in large
