"""Files that anybody may have written: to begin with their weights, or to go on from them."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY, Refused
from several_fits import Small, data, quiet_trainer
from torch import nn

from onecurve import Single, UserError, read_checkpoint
from onecurve.checkpoint.weights import load_weights


class Code:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> object:
        return os.mkdir, ("code-was-run",)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of a layer, whole."""
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": nn.Linear(64, 64).state_dict()}, "whole.ckpt")
    return tmp_path / "whole.ckpt"


def flip(file: Path) -> None:
    """One bit in the middle of the weights, which torch would read all the same."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)


FOREIGN: dict[Callable[[Path], object], str] = {
    flip: "its checksum is wrong",
    lambda file: torch.save({"state_dict": {"weight": Code()}}, file): "more than plain data",
    lambda file: file.write_bytes(pickle.dumps({"state_dict": Code()})): "more than plain data",
    lambda file: file.write_text("root:x:0:0:root:/root:/bin/sh\n"): "cannot be read",
    lambda file: torch.save(3, file): "none of its 0 entries fits",
}


@pytest.mark.parametrize("change", FOREIGN)
def test_weights_of_such_a_file_are_refused_in_one_line(
    file: Path, change: Callable[[Path], object]
) -> None:
    change(file)
    with pytest.raises(UserError) as refused:
        load_weights(nn.Linear(64, 64), file=str(file))
    line = str(refused.value)
    assert line.startswith(f"init={file}: ")
    assert FOREIGN[change] in line
    assert "\n" not in line
    # To go on from it is refused, too.
    with pytest.raises(UserError):
        read_checkpoint(file)
    assert list(file.parent.iterdir()) == [file]


def test_what_a_file_of_weights_is_not_for_is_said(file: Path, refused: Refused) -> None:
    assert "has no configuration to rebuild" in refused("evaluate.py", f"checkpoint={file}")
    line = refused("train.py", *TINY, f"resume={file}")
    assert f"start a new run from its weights: init={file}, or in a script" in line
    with pytest.raises(UserError, match=f"ckpt_path='{file}': has no optimizer_states, "):
        quiet_trainer(Single()).fit(Small(), data(), ckpt_path=file)
