"""Files that anybody may have written: to begin with their weights, or to go on from them."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from several_fits import Small, data, quiet_trainer
from torch import nn

import onecurve
from onecurve.checkpoint.format import read_checkpoint, reject_incomplete_state, trained_config
from onecurve.checkpoint.weights import load_weights
from onecurve.errors import UserError


class Code:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> object:
        return os.mkdir, (self.folder,)


def code(file: Path) -> Code:
    return Code(file.with_name("code-was-run"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The weights of a layer, whole."""
    torch.save({"state_dict": nn.Linear(64, 64).state_dict()}, tmp_path / "whole.ckpt")
    return tmp_path / "whole.ckpt"


def flip(file: Path) -> None:
    """One bit in the middle of the weights, which torch would read all the same."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def compress(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


FOREIGN: dict[Callable[[Path], object], str] = {
    flip: "its checksum is wrong",
    compress: "its records are compressed",
    lambda file: torch.save({"state_dict": {"weight": code(file)}}, file): "more than plain data",
    lambda file: file.write_bytes(pickle.dumps({"state_dict": code(file)})): "more than plain data",
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


def test_keys_that_are_missing_are_named(file: Path) -> None:
    with pytest.raises(UserError, match="has no configuration"):
        trained_config({"config": {"task": 3}}, file)
    with pytest.raises(UserError, match=r"has no optimizer_states, .* start a new run .* init="):
        reject_incomplete_state({"state_dict": {}}, file)


class CompilesItsNetwork(Small):
    def network(self) -> nn.Module:
        compiled: nn.Module = torch.compile(super().network(), backend="eager")  # type: ignore[assignment]
        return compiled


@pytest.mark.parametrize("tasks", [(Small, CompilesItsNetwork), (CompilesItsNetwork, Small)])
def test_a_run_resumes_with_a_network_that_is_compiled_or_no_longer_is(
    tasks: tuple[type[Small], type[Small]], tmp_path: Path
) -> None:
    """torch.compile puts `_orig_mod` into the names of its weights."""
    first, second = (task() for task in tasks)
    trainer = quiet_trainer(onecurve.Single(), max_epochs=1)
    trainer.fit(first, data())
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    resumed = quiet_trainer(onecurve.Single(), max_epochs=1)
    resumed.fit(second, data(), ckpt_path=tmp_path / "first.ckpt", weights_only=True)
    assert resumed.global_step == 3
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
