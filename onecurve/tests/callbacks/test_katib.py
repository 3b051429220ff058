"""What Katib reads of a run, by the rules of its file collector (katib 0.19, format JSON)."""

import json
import math
import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from conftest import TINY, Cli, column
from processes import Command

from onecurve.callbacks.katib import line

KATIB = "callbacks=[checkpoint,katib]"


def no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def collected(text: str, *names: str) -> list[tuple[str, float]]:
    """What the collector reports. Each line but empty ones has to be an object, or it ends."""
    found = []
    for row in text.split("\n"):
        if not row:
            continue
        values: dict[str, Any] = json.loads(row, parse_constant=no_json)
        assert datetime.fromisoformat(values["timestamp"]).tzinfo is not None
        # It passes over what is no string.
        found += [(name, float(values[name])) for name in names if type(values.get(name)) is str]
    return found


def test_each_value_is_reported_once(train: Cli) -> None:
    run = train("strategy=pipeline", KATIB).run
    text = (run / "katib.json").read_text()
    assert text.endswith("\n")
    for name in ("val/acc", "val/loss", "test/acc"):
        reported = [value for _, value in collected(text, name)]
        assert reported == column(run, name), name
        assert len(reported) == (1 if name == "test/acc" else 2)


def test_a_number_that_is_none_is_a_string_that_go_reads() -> None:
    values = {"val/loss": torch.tensor(math.nan), "val/acc": -math.inf, "timestamp": 3.0}
    row = json.loads(line(values), parse_constant=no_json)
    assert (row["val/loss"], row["val/acc"]) == ("nan", "-inf")
    datetime.fromisoformat(row["timestamp"])


def test_half_a_line_of_a_container_that_was_killed_is_dropped(train: Cli, tmp_path: Path) -> None:
    file = tmp_path / "new" / "metrics.json"
    file.parent.mkdir()
    earlier = line({"val/acc": 0.125})
    file.write_bytes(earlier + line({"val/acc": 0.25})[:15])
    train(KATIB, f"callbacks.katib.file={file}", "trainer.max_epochs=1")
    reported = collected(file.read_text(), "val/acc")
    assert reported[0] == ("val/acc", 0.125)
    assert len(reported) == 2


@pytest.mark.long
def test_early_stopping_leaves_whole_lines_and_a_checkpoint(tmp_path: Path) -> None:
    """Katib sends SIGTERM to the command, and waits a minute."""
    slow = ("callbacks=[checkpoint,progress,katib]", "trainer.max_epochs=100000")
    command = Command(tmp_path, "train.py", *TINY, *slow, "strategy=ddp")
    command.wait_for_line("epoch 2/")
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 128 + signal.SIGTERM, err
    (run,) = tmp_path.glob("runs/*/*")
    assert len(collected((run / "katib.json").read_text(), "val/acc")) >= 2
    step = int(re.findall(r"stopped by SIGTERM after step (\d+)", err)[-1])
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == step
