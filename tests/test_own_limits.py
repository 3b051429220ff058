"""A range and a refusal of one's own, as docs/callbacks.md tells: without a line of the library."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from baking import LIBRARY, bake, environment_of, run_in

# What the callback needs to be at work.
TWO_STEPS = ("model=mlp", "debug=limit", "trainer.max_epochs=1", "trainer.limit_train_batches=2")


@pytest.mark.long
def test_limits_are_as_the_page_says(tmp_path: Path) -> None:
    project = bake(tmp_path / "out")
    page = (LIBRARY / "docs/callbacks.md").read_text().partition("## Limits of your own")[2]
    (session,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    files = re.findall(r"`((?:src|configs)/\S+)`[^`]*```\w+\n(.*?)```", page, re.DOTALL)
    assert len(files) == 2
    for name, content in files:
        (project / name).write_text(content)

    def train(*typed: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "train.py", *typed)
        return run_in(project, *command, env=environment_of(project))

    lines = session.splitlines()
    assert len(lines) == 6
    for typed, answer in zip(lines[::2], lines[1::2], strict=True):
        refused = train(*shlex.split(typed)[3:])
        assert (refused.returncode, refused.stderr) == (2, f"{answer}\n")
        assert not (project / "runs").exists()
    apart = train("+callbacks=gradient_noise", "strategy=ddp", *TWO_STEPS)
    assert apart.returncode == 2
    assert "error: callbacks.gradient_noise: each rank would draw noise of its own" in apart.stderr
    done = train("+callbacks=gradient_noise", *TWO_STEPS)
    assert done.returncode == 0, done.stderr
