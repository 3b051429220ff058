"""The task of this project: what it measures, and what it writes."""

from math import e, log2
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TWO_STEPS, composed
from hydra.utils import instantiate
from onecurve.testing.runs import Cli, column

from {{ cookiecutter.package_name }}.tasks.language_model import LanguageModel


@pytest.fixture
def run(once: Any) -> Path:
    directory: Path = once(*TWO_STEPS, "task=language_model", "data=text", "model=gpt")
    return directory


@pytest.fixture
def task(run: Path) -> LanguageModel:
    return LanguageModel.load_from_checkpoint(run / "checkpoints/last.ckpt").eval()


def test_a_checkpoint_makes_the_task_again(task: LanguageModel, run: Path, tmp_path: Path) -> None:
    """`load_from_checkpoint` as of any LightningModule, and the loss that was logged."""
    config = composed("data=text", "data.batch_size=8", f"data.cache={tmp_path}")
    data: Any = instantiate(config.data)
    data.prepare_data()
    data.setup("fit")
    inputs, targets = task.prepare(next(iter(data.val_dataloader())))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    # float32, as the run
    logged = column(run, "val/loss")[-1]
    assert task.loss(task(inputs), targets).item() == pytest.approx(logged, rel=1e-6)


def test_bits_and_perplexity_are_those_of_the_loss_beside_the_baselines(run: Path) -> None:
    for part in ("val", "test"):
        (loss,), (bits,) = column(run, f"{part}/loss"), column(run, f"{part}/bits_per_byte")
        assert bits == pytest.approx(loss * log2(e), rel=1e-6)
        assert log2(*column(run, f"{part}/perplexity")) == pytest.approx(bits, rel=1e-5)
    baselines = [*column(run, "test/bits_per_byte_xz"), *column(run, "test/bits_per_byte_gzip")]
    assert 1 < baselines[0] < baselines[1] < column(run, "test/bits_per_byte_unigram")[0] < 8


def test_what_it_writes_is_what_forward_says(task: LanguageModel) -> None:
    def written(prompt: bytes, *options: float) -> bytes:
        return b"".join(task.generate(prompt, 6, *options))

    prompt = bytes(range(48, 122))  # longer than the context
    text = list(prompt)
    for _ in range(6):
        text.append(int(task(torch.tensor([text[-task.context :]]))[0, -1].argmax()))
    assert written(prompt, 0) == bytes(text[-6:]) == written(prompt[-task.context :], 0)
    drawn = {written(b"def ", 1.0, seed) for seed in (1, 2, 3)}
    assert len(drawn) == 3
    assert written(b"def ", 1.0, 2) in drawn
    assert len(written(b"", 1.0)) == 6
    assert task.displays()["continuation"].startswith("def ")


def test_predict_continues_a_prompt(run: Path, cli: Cli) -> None:
    checkpoint = f"checkpoint={run}/checkpoints/last.ckpt"
    typed = ("predict.prompt=for i in", "predict.length=30", "predict.temperature=1.5")
    outcome = cli("predict.py", checkpoint, *typed)
    assert outcome.status == 0, outcome.err
    text = (outcome.run / "continuation.txt").read_bytes()
    assert text.startswith(b"for i in")
    assert len(text) == 38
    # What would move the cursor is not printed as it is.
    assert "\nfor i in" in f"\n{outcome.out}"
    assert not [char for char in outcome.out if char < " " and char not in "\n\t"]
    for wrong in ("predict.length=0", "predict.temperature=-1"):
        outcome = cli("predict.py", checkpoint, wrong)
        assert outcome.status == 2
        assert outcome.err.startswith(f"error: {wrong}: must be")
