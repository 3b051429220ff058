"""The README's blocks of commands, and how they are typed."""

import os
import re
import subprocess
from pathlib import Path

from baking import TEMPLATE

README = (TEMPLATE / "README.md").read_text(encoding="utf-8")
TRY, TRY_MORE, BAKE, USE = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def bash(script: str, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=cwd,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
