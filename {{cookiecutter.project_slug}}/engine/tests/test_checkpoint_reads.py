"""A resume looks through a file once in the command, and reads it once a rank."""

import os
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Cli

from onecurve.command.entry import command, run
from onecurve.run import fit

READS = Path("reads")


def note(what: str) -> None:
    with READS.open("a") as file:
        file.write(f"{os.getpid()} {what}\n")


def work(config: dict[str, Any], run_dir: Path) -> dict[str, float]:
    """What a rank does, with an eye on what it reads. The ranks of this test end after it."""
    count_reads(pytest.MonkeyPatch())
    return fit.work(config, run_dir)


def count_reads(patch: pytest.MonkeyPatch) -> None:
    load, look_through = torch.load, zipfile.ZipFile.testzip

    def counted_load(*args: Any, **kwargs: Any) -> Any:
        note("load")
        return load(*args, **kwargs)

    def counted_look(archive: zipfile.ZipFile) -> str | None:
        note("check")
        return look_through(archive)

    patch.setattr(torch, "load", counted_load)
    patch.setattr(zipfile.ZipFile, "testzip", counted_look)
