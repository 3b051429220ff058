"""Turns a sharded checkpoint into one file, which `torch.load` reads anywhere.

python -m onecurve.checkpoint.sharded.to_file SHARDED FILE
"""

import sys
from pathlib import Path

from ...errors import UserError, stop
from ..file import write_checkpoint
from ..format import read_checkpoint


def main(arguments: list[str]) -> None:
    """Convert, and print what was written."""
    if len(arguments) != 2:
        raise UserError(
            "to_file: give a sharded checkpoint and the file to write, such as "
            "runs/.../checkpoints/last.ckpt whole.ckpt"
        )
    source, target = map(Path, arguments)
    if target.exists():
        raise UserError(f"{target}: exists already; give a new name, or remove it first")
    checkpoint = read_checkpoint(source)
    try:
        write_checkpoint(checkpoint, target)
    except OSError as error:
        raise UserError(f"{target}: could not be written: {error.strerror}") from None
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB, {source} as one file")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as refusal:
        stop(refusal)
