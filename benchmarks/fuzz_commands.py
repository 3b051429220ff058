"""Types command lines that nobody means, and counts what no mistake may lead to.

Lines are drawn from a seed, out of the real configuration: values of another kind, keys misspelt,
added and taken away, choices that are none, words without a value. Each is run as `python train.py`
in a process of its own, forked from one that has imported everything, with a run of one step before
it; one that is accepted therefore trains and tests, and its record is compared with the signatures
of Lightning and of the project.

    python benchmarks/fuzz_commands.py [LINES] [SEED]

Counted are tracebacks (and refusals of more than a line, and hangs), leftovers (files or folders of
a command that was refused), and wrong acceptances. Exit status 1 if there is any.
"""

import os
import shlex
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import torch
from baked import PROJECT, TRAIN, folder_for_runs, output_to
from fuzz.command import empty, run
from fuzz.judge import KINDS, judge
from fuzz.lines import SHORT, draws

from onecurve.launch.forkserver import PRELOADED, warm_up


def warm() -> None:
    """Import what the commands import, in one thread: what is forked has no others."""
    torch.set_num_threads(1)
    # Nobody listens there: what is not on this machine is not downloaded.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        os.environ[name] = "http://127.0.0.1:9"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with output_to("ranks.txt"):
        warm_up()
    for module in PRELOADED[1:]:
        import_module(module)


def main(number: int = 1000, seed: int = 0) -> int:
    """Print every line that something is wrong with, and the counts; 1 if there is any."""
    with folder_for_runs() as root:
        warm()
        counts: Counter[str] = Counter()
        folder = Path(root, "here")
        folder.mkdir()
        for line in draws(PROJECT / "configs", seed, number):
            done = run(TRAIN, [*SHORT, *line.words], folder)
            counts["accepted" if done.status == 0 else "refused"] += 1
            for kind, words in judge(done, folder, line.wrong):
                counts[kind] += 1
                print(f"{kind}: {shlex.join(line.words)}\n    {words[:300]}", flush=True)
            empty(folder)
    print(f"{number} lines from seed {seed}: {counts['refused']} refused, ", end="")
    print(f"{counts['accepted']} accepted; ", end="")
    print(", ".join(f"{counts[kind]} {kind}s" for kind in KINDS))
    return int(any(counts[kind] for kind in KINDS))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
