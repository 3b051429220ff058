"""`init=FILE`: initialize a network with the weights of a checkpoint that fit."""

import zipfile
from pathlib import Path

from torch import Tensor, nn

from ..errors import UserError, some_of
from .file import damage
from .format import Unreadable, contents, read_checkpoint


def load_weights(net: nn.Module, *, file: str | None) -> None:
    """Load every weight that fits by name and shape, and print which did and which did not.

    The file is a checkpoint, also a sharded one, or any other that holds a ``state_dict``.
    """
    if file is None:
        raise UserError("init=weights: names no file; use init=FILE")
    try:
        # torch before 1.6 wrote no zip.
        if zipfile.is_zipfile(file) and (reason := damage(file)):
            raise Unreadable(f"cannot be read ({reason})")
        content = read_checkpoint(file) if Path(file).is_dir() else contents(file)
    except Unreadable as error:
        raise UserError(
            f"init={file}: {error}; give a file that holds nothing but a state_dict, such as "
            "runs/.../checkpoints/best.ckpt"
        ) from None
    weights = content.get("state_dict", content) if isinstance(content, dict) else {}
    weights = weights if isinstance(weights, dict) else {}
    # In a task's state dict the network's names have a prefix.
    loaded = {str(name).removeprefix("network."): value for name, value in weights.items()}
    current = net.state_dict()
    fits = {
        name: value
        for name, value in loaded.items()
        if name in current and isinstance(value, Tensor) and value.shape == current[name].shape
    }
    if not fits:
        raise UserError(
            f"init={file}: none of its {len(loaded)} entries fits this network, whose first is "
            f"{next(iter(current), 'missing')}; give the model that it was trained with"
        )
    net.load_state_dict(fits, strict=False)
    print(f"init: {len(fits)} of {len(current)} weights are from {file}")
    for what, names in (
        ("not in the file, initialized at random", [name for name in current if name not in fits]),
        ("not used", [name for name in loaded if name not in fits]),
    ):
        if names:
            print(f"init: {what}: {some_of(names)}")
