"""The README's blocks of commands, and how they are typed."""

import os
import re
from pathlib import Path

from baking import TEMPLATE, run_in

README = (TEMPLATE / "README.md").read_text(encoding="utf-8")
_, TRY_MORE, BAKE, USE = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def bash(script: str, cwd: Path, **more: str) -> str:
    done = run_in(cwd, "bash", "-euc", script, env=os.environ | more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
