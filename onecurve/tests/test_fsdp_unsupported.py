"""strategy=fsdp rejects in one line what needs full parameters or full gradients."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from torch import nn
from torch.optim import LBFGS, Adafactor, AdamW

from onecurve.errors import UserError
from onecurve.strategies.fsdp.unsupported import reject_optimizers, reject_sparse


def adafactor(parameters: Iterable[nn.Parameter], **options: Any) -> Adafactor:
    return Adafactor(parameters)


def test_adafactor_is_rejected_before_the_first_step(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(
        "train.py", "model=mlp", "data.image_size=8", "logger=csv", "callbacks=[]",
        "strategy=fsdp", "optimizer._target_=test_fsdp_unsupported.adafactor",
    )  # fmt: skip
    assert outcome.status == 2
    assert "strategy=fsdp: Adafactor cannot update shards" in outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_sharded_is_rejected_with_an_alternative() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    reject_sparse(network, "fsdp")
    reject_optimizers([AdamW(network.parameters())], "fsdp")
    with pytest.raises(UserError, match=r"LBFGS cannot update shards .*; use another .*AdamW"):
        reject_optimizers([LBFGS(network.parameters())], "fsdp")
    network.append(nn.Embedding(2, 2, sparse=True))
    with pytest.raises(UserError, match=r"1 has sparse gradients, .* use sparse=False"):
        reject_sparse(network, "fsdp")
