"""Words as tensors: the bytes of a text, with zeros after its end."""

from collections.abc import Sequence

import torch
from onecurve.errors import UserError
from torch import Tensor


def encoded(texts: Sequence[str], length: int, key: str) -> Tensor:
    """Turn N texts into captions (N, length), uint8.

    Args:
        texts: the captions.
        length: bytes of a caption.
        key: the config key of the texts, for the error.

    Raises:
        UserError: a text is longer.
    """
    captions = torch.zeros(len(texts), length, dtype=torch.uint8)
    for row, text in zip(captions, texts, strict=True):
        content = text.encode()
        if len(content) > length:
            raise UserError(
                f"{key}={text}: has {len(content)} bytes, and a caption has room for {length}; "
                "say it in fewer words"
            )
        row[: len(content)] = torch.tensor(list(content), dtype=torch.uint8)
    return captions


def decoded(captions: Tensor) -> list[str]:
    """The texts of captions (N, length)."""
    return [bytes(row).rstrip(b"\0").decode() for row in captions.tolist()]
