"""A resume looks through a file once, in the command, and reads it once in each rank."""

import os
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli, one_of_a_kind
from omegaconf import DictConfig

from onecurve.command import entry
from onecurve.run import fit
from onecurve.run.context import RunContext


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """What a rank does, counted. The process of a rank ends after it, and the patches with it."""
    count_reads(pytest.MonkeyPatch())
    return fit.work(config, context)


def count_reads(patch: pytest.MonkeyPatch) -> None:
    load, look_through = torch.load, zipfile.ZipFile.testzip

    def note(what: str) -> None:
        with Path("reads").open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    def counted_load(file: Any, *args: Any, **kwargs: Any) -> Any:
        # Tensors that ranks send each other pass through it as well.
        if isinstance(file, str | Path):
            note("load")
        return load(file, *args, **kwargs)

    def counted_look(archive: zipfile.ZipFile) -> str | None:
        note("check")
        return look_through(archive)

    patch.setattr(torch, "load", counted_load)
    patch.setattr(zipfile.ZipFile, "testzip", counted_look)


@pytest.mark.parametrize("strategy", one_of_a_kind(["ddp", "pipeline"], kept=["pipeline"]))
def test_a_file_is_read_once_a_rank(
    train: Cli, cli: Cli, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    train(f"strategy={strategy}", "trainer.max_epochs=1", "test=false")
    run = entry.run

    def run_counted(_: str, config: DictConfig) -> float | None:
        return run("test_checkpoint_reads.work", config)

    monkeypatch.setattr(entry, "run", run_counted)
    count_reads(monkeypatch)
    more = cli("train.py", "resume=last", "trainer.max_epochs=2")
    assert more.status == 0, more.err
    counts = Counter(Path("reads").read_text().splitlines())
    here = f"{os.getpid()} check"
    assert counts.pop(here) == 1
    assert [what.split()[1] for what in counts] == ["load", "load"]
    assert set(counts.values()) == {1}
