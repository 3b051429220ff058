"""Checkpoints that are damaged, or are none, drawn from a seed."""

import io
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

MARKER = "code-was-run"
BOMB_BYTES = 1 << 30


class Code:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (MARKER, "w")


class Files:
    """Makes files out of a checkpoint that is whole.

    Args:
        whole: The bytes of the checkpoint.
        seed: The same files come of the same seed.
    """

    def __init__(self, whole: bytes, seed: int) -> None:
        self.whole = whole
        self.random = random.Random(seed)
        self.content: dict[str, Any] = torch.load(io.BytesIO(whole), weights_only=True)
        damages = (
            *(self._flipped, self._flipped, self._flipped, self._cut, self._cut, self._zeroed),
            *(self._appended, self._moved, self._doubled),
        )
        others = (
            *(self._noise, self._text, self._empty, self._array, self._zip, self._bomb),
            *(self._code, self._code_in_torch, self._module, self._legacy, self._plain),
            *(self._no_checkpoint, self._parts_missing, self._other_kinds),
        )
        self.kinds: tuple[Callable[[], bytes], ...] = damages * 3 + others

    def draw(self, path: Path) -> str:
        """Write one; return of what kind it is."""
        make = self.random.choice(self.kinds)
        path.write_bytes(make())
        return make.__name__.strip("_")

    def _at(self) -> int:
        return self.random.randrange(len(self.whole))

    def _flipped(self) -> bytes:
        changed = bytearray(self.whole)
        for _ in range(self.random.choice((1, 1, 2, 20))):
            changed[self._at()] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def _cut(self) -> bytes:
        return self.whole[: self._at()]

    def _zeroed(self) -> bytes:
        at, size = self._at(), self.random.choice((1, 16, 512, 4096))
        return self.whole[:at] + bytes(len(self.whole[at : at + size])) + self.whole[at + size :]

    def _appended(self) -> bytes:
        return self.whole + self.random.randbytes(self.random.choice((1, 22, 4096)))

    def _moved(self) -> bytes:
        first, second = sorted((self._at(), self._at()))
        return self.whole[first:second] + self.whole[:first] + self.whole[second:]

    def _doubled(self) -> bytes:
        at = self._at()
        return self.whole[:at] + self.whole

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.choice((1, 100, 10_000)))

    def _text(self) -> bytes:
        return b"Gewichte: keine\n" * self.random.choice((1, 100))

    def _empty(self) -> bytes:
        return b""

    def _array(self) -> bytes:
        file = io.BytesIO()
        np.save(file, np.zeros(10))
        return file.getvalue()

    def _zip(self) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": {}}))
            archive.writestr("archive/version", "3")
        return file.getvalue()

    def _bomb(self) -> bytes:
        """A small file of a large tensor's zeros."""
        file = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(self.whole)) as there,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in there.namelist():
                if name.endswith("/data/0"):
                    with archive.open(name, "w") as record:
                        for _ in range(BOMB_BYTES >> 20):
                            record.write(bytes(1 << 20))
                else:
                    archive.writestr(name, there.read(name))
        return file.getvalue()

    def _code(self) -> bytes:
        return pickle.dumps({"state_dict": Code()}, protocol=self.random.choice((2, 4)))

    def _code_in_torch(self) -> bytes:
        content = {**self.content, self.random.choice(list(self.content)): Code()}
        return _saved(content)

    def _module(self) -> bytes:
        return _saved(nn.Linear(2, 2))

    def _legacy(self) -> bytes:
        """As releases of PyTorch before 1.6 wrote it."""
        file = io.BytesIO()
        torch.save(self.content, file, _use_new_zipfile_serialization=False)
        return file.getvalue()

    def _plain(self) -> bytes:
        """The weights alone, or the dictionary of plain Lightning."""
        if self.random.random() < 0.5:
            return _saved(self.content["state_dict"])
        own = ("config", "layout", "logs", "format")
        return _saved({key: value for key, value in self.content.items() if key not in own})

    def _no_checkpoint(self) -> bytes:
        others: tuple[Any, ...] = (3, None, [], {}, "text", [torch.ones(2)], {"state_dict": 3})
        return _saved(self.random.choice((*others, {"state_dict": {}}, {3: 4})))

    def _parts_missing(self) -> bytes:
        away = self.random.sample(list(self.content), self.random.randrange(1, 4))
        return _saved({key: value for key, value in self.content.items() if key not in away})

    def _other_kinds(self) -> bytes:
        values: tuple[Any, ...] = (None, 3, "text", [], {}, {"a": 1}, [1, 2], torch.ones(2), -1.5)
        changed = dict(self.content)
        for key in self.random.sample(list(changed), self.random.randrange(1, 3)):
            changed[key] = self.random.choice(values)
        return _saved(changed)


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def means_the_same(file: Path, content: Any) -> bool:
    """Whether what is in a file is what was in the one that was whole."""
    try:
        found = torch.load(file, weights_only=True)
    except Exception:
        return False
    return _same(found, content)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)
