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
    given = {str(name).removeprefix("network."): value for name, value in weights.items()}
    own = net.state_dict()
    fits = {
        name: value
        for name, value in given.items()
        if name in own and isinstance(value, Tensor) and value.shape == own[name].shape
    }
    if not fits:
        raise UserError(
            f"init={file}: none of its {len(given)} entries fits this network, whose first is "
            f"{next(iter(own), 'missing')}; give the model that it was trained with"
        )
    net.load_state_dict(fits, strict=False)
    print(f"init: {len(fits)} of {len(own)} weights are from {file}")
    for what, names in (
        ("not in the file, initialized at random", [name for name in own if name not in fits]),
        ("not used", [name for name in given if name not in fits]),
    ):
        if names:
            print(f"init: {what}: {some_of(names)}")
