"""Command lines that nobody means: none may lead to a traceback, or leave something behind."""

import math
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY, column, run_directories
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf
from processes import Command, end

from onecurve.app.command.resolvers import register_resolvers
from onecurve.app.run.interpolation import dotted

# Others, and as many as one likes: FUZZ_LINES=1000 FUZZ_SEED=1 make test-library ARGS=-kfuzz
LINES, SEED = int(os.environ.get("FUZZ_LINES", 10)), int(os.environ.get("FUZZ_SEED", 0))
# A run of one step, whatever is drawn after it.
SHORT = (*TINY, "trainer.accelerator=cpu", "trainer.max_epochs=1", "trainer.max_steps=1")
SHORT += ("trainer.limit_val_batches=1", "trainer.limit_test_batches=1")
# A number that is too large must not take this machine's memory.
BYTES_AT_MOST = 16 << 30
# Of no use to a number, and to true or false.
NO_NUMBER = ("nan", "abc", "''", "[]", "[1]", "{}", "{a:1}", "ä☃", "NaN", "[nan]", "a b", "-", "1_")
# What may be right somewhere.
OTHERS = (
    *("inf", "-inf", "-1", "0", "1", "2", "0.5", "1.5", "1e3", "-0.0", "99999999999999999999"),
    *("null", "true", "false", "[a,b]", "[0.5]", "[1,2]", "None", "auto", "x" * 300, "/etc/passwd"),
    *("/dev/null", "../here", "~", "${seed}", "/proc/nowhere", "[[1]]", "{b:{c:nan}}"),
)
# Wrong wherever they stand.
BROKEN = (
    *("${missing}", "${oc.env:NOT_SET}", "${", "${.a.b}"),
    *("'open", '"open', "[", "{", "]", "a,b"),
)
# Without these there is no run.
NEEDED = ("task", "data", "model", "trainer", "strategy", "paths", "launch", "seed")
# They start other processes, or look for other machines; and what a network makes of an input that
# is not its own fails in the network's lines, with the traceback that its author needs.
NOT_DRAWN = (
    *("hydra", "sweep", "wandb", "trainer.num_nodes", "num_workers"),
    *("model.image_size", "model.in_channels", "num_classes"),
)
Line = tuple[list[str], bool]
"""What is typed, and whether it is wrong by the way in which it was made; else nobody knows."""


def is_drawn(name: str) -> bool:
    return not any(part in name for part in NOT_DRAWN)


def draws() -> Iterator[Line]:
    """Lines for `train.py`; the same come of the same seed."""
    register_resolvers()
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("train", list(SHORT)))
        loader = GlobalHydra.instance().config_loader()
        choices = {
            group: [*filter(is_drawn, loader.get_group_options(group, ObjectType.CONFIG))]
            for group in filter(is_drawn, sorted(loader.list_groups("")))
        }
    values = {key: value for key, value in dotted(config) if is_drawn(key)}
    groups = [group for group in choices if choices[group]]
    pick = random.Random(SEED).choice
    for _ in range(LINES):
        key, group, value = pick([*values]), pick(groups), pick(NO_NUMBER + OTHERS)
        one, two, at = pick(choices[group]), pick(choices[group]), pick(range(len(key)))
        misspelt = pick((key[:at] + key[at + 1 :], f"{key[:at]}x{key[at:]}", f"{key}.x"))
        is_known = misspelt in values or misspelt in groups or misspelt.startswith("paths.")
        gone = pick([*values, *groups, *NEEDED])
        added = pick((key, f"{key}.x", f"{key.partition('.')[0]}.new", "new", ""))
        no_value = pick(([key], [key, "1"], [f"={key}"], [f"{key}:1"], [f"-{key}"]))
        is_number = isinstance(values[key], int | float)
        group_lines: list[Line] = [
            ([f"{group}={one}"], False),
            ([f"{group}={one}x"], True),
            ([f"{group}=null"], True),
            ([f"{group}=[{one},{two}]"], group not in ("callbacks", "logger")),
            ([f"+{group}={one}"], False),
        ]
        lines: list[Line] = [
            *(3 * [([f"{key}={value}"], is_number and value in NO_NUMBER)]),
            ([f"{key}={pick(BROKEN)}"], True),
            ([f"{misspelt}=1"], not is_known),
            ([f"{pick(('+', '++'))}{added}={value}"], False),
            ([f"~{gone}"], gone in NEEDED),
            (no_value, True),
            pick(group_lines),
        ]
        yield pick(lines)


def faults(folder: Path, *typed: str, wrong: bool) -> list[str]:
    """What is wrong with what a command has done in an empty folder; it must be rejected if so."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = Command(folder, "train.py", *typed)
    resource.prlimit(command.pid, resource.RLIMIT_AS, (BYTES_AT_MOST, BYTES_AT_MOST))
    try:
        _, err = command.communicate(60)
    except subprocess.TimeoutExpired:
        return ["it did not end"]
    finally:
        end(command)
    status, lines = command.returncode, [line for line in err.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in err or status not in (0, 1, 2):
        return [f"traceback: status {status}: {''.join(lines[-1:])}"]
    if status == 0 and wrong:
        return ["wrong acceptance"]
    if status == 0:
        (run,) = run_directories(folder)
        return [f"loss={loss}" for loss in column(run, "train/loss") if not math.isfinite(loss)]
    found = [] if len(lines) == 1 else [f"{len(lines)} lines of refusal: {' / '.join(lines)[:300]}"]
    # What had begun to train keeps its directory, with the record of how it ended.
    if list(folder.iterdir()) and not list(folder.rglob("metrics.csv")):
        found.append("leftover")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
def test_no_command_line_gets_a_traceback_leaves_something_or_is_wrongly_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for words, wrong in draws():
        assert faults(tmp_path / "here", *SHORT, *words, wrong=wrong) == [], words
