"""From the command to the end of the first training step, beside what cannot be avoided.

Starts `python train.py` as a user does, several times, and in the same rounds
`python -c "import lightning.pytorch, torchvision"` and `train.py --help`.

    python benchmarks/startup.py [ROUNDS]

Prints ratios of medians, which mean the same on any machine.
"""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

from baked import TRAIN, folder_for_runs
from lightning.pytorch import Callback

COMMANDS = {
    "whole": (str(TRAIN), "callbacks=[]", "+callbacks.stop._target_=startup.Stop"),
    "imports": ("-c", "import lightning.pytorch, torchvision"),
    "help": (str(TRAIN), "--help"),
}


class Stop(Callback):
    """Ends the process after its first step, whatever else it would have to end."""

    def on_train_batch_end(self, *_: Any) -> None:
        """The optimizer has made its step."""
        os._exit(0)


def seconds(*arguments: str) -> float:
    """The wall time of a Python with arguments."""
    path = os.pathsep.join(sys.path)  # where a run finds the class above
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def main(rounds: int = 3) -> None:
    """Measure in turn, and print."""
    # The first round fills the caches of the file system.
    found = [[seconds(*command) for command in COMMANDS.values()] for _ in range(rounds + 1)][1:]
    whole, imports, shown = map(statistics.median, zip(*found, strict=True))
    print(f"the first step / importing lightning and torchvision alone: {whole / imports:.2f}")
    print(f"--help / the first step: {shown / whole:.2f}")


if __name__ == "__main__":
    with folder_for_runs():
        main(*map(int, sys.argv[1:]))
