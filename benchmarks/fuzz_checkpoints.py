"""Gives damaged checkpoints to every command that reads one, and counts what may not come of it.

Drawn from a seed: bytes flipped, ends cut off, blocks zeroed, moved and doubled; other people's
files, from plain PyTorch and plain Lightning; archives that unpack to a gigabyte, and pickles with
code in them. `train.py` goes on from each or begins with its weights, `evaluate.py` and
`predict.py` read it, in a process forked from one that has imported everything.

    python benchmarks/fuzz_checkpoints.py [FILES] [SEED]

Counted are tracebacks (and refusals of more than a line, and hangs), leftovers (files or folders of
a command that was refused), and wrong acceptances: code that was run, and files that were read
although they hold something else than was saved. Exit status 1 if there is any.
"""

import sys
from collections import Counter
from pathlib import Path

from baked import PROJECT, folder_for_runs, train
from fuzz_commands import warm


def main(number: int = 1000, seed: int = 0) -> int:
    """Print what is wrong with which file, and the counts; 1 if there is any."""
    with folder_for_runs() as root:
        from fuzz.files import Files
        from fuzz.judge import KINDS
        from fuzz.lines import SHORT
        from fuzz.try_files import try_file
        from PIL import Image

        warm()
        files = Files((train(*SHORT) / "checkpoints/last.ckpt").read_bytes(), seed)
        folder = Path(root, "here")
        (folder / "images").mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / "images/black.png")
        counts: Counter[str] = Counter()
        for case in range(number):
            for kind, typed, words in try_file(files, PROJECT, folder, case):
                counts[kind] += 1
                print(f"{kind}: {case}: {typed}\n    {words[:300]}", flush=True)
    print(f"{number} files from seed {seed}: ", end="")
    print(", ".join(f"{counts[kind]} {kind}s" for kind in KINDS))
    return int(any(counts[kind] for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
