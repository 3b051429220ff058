"""The task: noise that goes in, and comes out again as the words say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TWO_STEPS, composed
from onecurve.app.run.instantiate import build_task
from onecurve.testing.runs import Cli, column
from PIL import Image
from torch import Tensor

from {{ cookiecutter.package_name }}.data.captions import encoded
from {{ cookiecutter.package_name }}.tasks.noise import ddim, noised, share


@pytest.fixture
def task() -> Any:
    """As it begins, but with a network that makes something of its words."""
    torch.manual_seed(0)
    task = build_task(composed("model=denoiser", "data=digits")).eval()
    for weights in task.parameters():
        torch.nn.init.normal_(weights, std=0.1)
    return task


def test_images_turn_into_noise() -> None:
    drawn = torch.Generator().manual_seed(0)
    images, noise = torch.randn(2, 10_000, 1, 2, 2, generator=drawn)
    for time in (0.01, 0.3, 0.7, 1.0):
        at = noised(images, noise, torch.full((len(images),), time))
        assert at.var().item() == pytest.approx(1, abs=0.02)
        kept = share(torch.tensor(time)).item()
        assert (at * images).mean().item() == pytest.approx(kept**0.5, abs=0.02)
    times = share(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert times[0] == 1
    assert times[-1] < 0.001
    assert (times.diff() <= 0).all()


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_who_knows_the_noise_gets_the_image_back(steps: int) -> None:
    drawn = torch.Generator().manual_seed(0)
    images, noise = torch.rand(2, 5, 1, 8, 8, generator=drawn, dtype=torch.float64) * 2 - 1

    def noise_in(at: Tensor, time: Tensor) -> Tensor:
        kept = share(time).view(-1, 1, 1, 1)
        seen.append((at - kept.sqrt() * images) / (1 - kept).sqrt())
        return seen[-1]

    seen: list[Tensor] = []
    torch.testing.assert_close(ddim(noise_in, noise, steps), images, rtol=0, atol=1e-12)
    # It is the same noise all the way.
    assert len(seen) == steps
    for found in seen:
        torch.testing.assert_close(found, seen[0], rtol=0, atol=1e-10)


def test_words_are_left_out_now_and_then(task: Any) -> None:
    words = encoded(["seven"], 24, "texts").expand(5000, -1)
    (_, time, said), noise = task.prepare((torch.zeros(5000, 1, 8, 8), words))
    silent = said.sum(1) == 0
    assert silent.double().mean().item() == pytest.approx(0.1, abs=0.02)
    assert torch.equal(said[~silent], words[~silent])
    assert set((time * 100).round().tolist()) == set(range(1, 101))
    assert noise.std().item() == pytest.approx(1, abs=0.01)


@torch.no_grad()
def test_guidance_leads_from_no_words_to_words_and_beyond(task: Any) -> None:
    words = encoded(["one", "two"], 24, "texts")
    at = torch.randn(2, 1, 8, 8), torch.tensor([0.5, 0.9])
    told, untold = task(*at, words), task(*at, torch.zeros_like(words))
    assert not torch.allclose(told, untold, atol=1e-3)
    for guidance, expected in ((0, untold), (1, told), (3, 3 * told - 2 * untold)):
        found = task._noise_in(*at, words, guidance)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_same_seed_draws_the_same_images(task: Any) -> None:
    words = encoded(["one", "two"], 24, "texts")
    images, again, other = (task.sample(words, steps=3, seed=seed) for seed in (0, 0, 1))
    assert images.shape == (2, 1, 8, 8)
    assert images.abs().max() <= 1
    assert torch.equal(images, again)
    assert not torch.equal(images, other)
    # Words make the difference, with the same noise.
    swapped = task.sample(words.flip(0), steps=3)
    assert not torch.equal(images, swapped)


def test_what_layers_pass_on_is_nothing_to_warn_of(cli: Cli) -> None:
    outcome = cli("train.py", *TWO_STEPS, "strategy=fsdp", "test=false", "callbacks=[]")
    assert outcome.status == 0, outcome.err
    assert "Warning" not in outcome.err


@pytest.mark.usefixtures("small_data")
def test_what_is_trained_is_measured_shown_and_drawn(cli: Cli, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = cli("train.py", *TWO_STEPS, "callbacks=[checkpoint,tensorboard]")
    assert trained.status == 0, trained.err
    for name in ("agreement", "frechet"):
        for of in ("", "_of_real", "_of_noise"):
            assert len(column(trained.run, f"test/{name}{of}")) == 1
    events = EventAccumulator(str(*(trained.run / "tensorboard").iterdir())).Reload()
    # Real images with their words, and drawn ones.
    assert {"images", "samples"} <= set(events.Tags()["images"])

    checkpoint = f"checkpoint={trained.run / 'checkpoints/last.ckpt'}"
    drawn = cli("predict.py", checkpoint, "predict.prompt=[seven,7,a three]", "predict.count=2")
    assert drawn.status == 0, drawn.err
    assert "2 images of seven, 7, a three: " in drawn.out
    picture = Image.open(drawn.run / "samples.png")
    # 8 pixels and a line around them, each of 4 x 4.
    assert picture.size == (4 * (3 * 9 + 1), 4 * (2 * 9 + 1))
    for wrong in ("count=0", "steps=a", "guidance=-1"):
        refused = cli("predict.py", checkpoint, "predict.prompt=seven", f"predict.{wrong}")
        assert (refused.status, len(refused.err.splitlines())) == (2, 1)
        assert f"predict.{wrong}: must be a " in refused.err
    refused = cli("predict.py", checkpoint, "predict.prompt=the handwritten digit seven")
    assert "predict.prompt=the handwritten digit seven: has 27 bytes" in refused.err
