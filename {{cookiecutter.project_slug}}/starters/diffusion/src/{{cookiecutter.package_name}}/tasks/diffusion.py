"""Diffusion: a network that predicts the noise in images draws them from noise and words."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, Unpack, runtime_checkable

import torch
import torch.nn.functional as F
from onecurve.errors import UserError
from PIL import Image
from pydantic import Field
from torch import Tensor
from torchvision.utils import make_grid

from ..data.captions import encoded
from .noise import ddim, noised
from .task import Parts, Task

Count = Annotated[int, Field(ge=1)]

Batch = tuple[Tensor, Tensor]
"""Images (N, C, H, W) in -1..1 and captions (N, L), uint8."""
ROWS, SCALE = 6, 4  # of what is shown: images of each prompt, and how large their pixels are


@runtime_checkable
class Judges(Protocol):
    """A data module that can measure drawn images."""

    def quality(self, draw: Any, count: int) -> dict[str, float]:
        """Measures by name, for this many images that `draw` makes from captions."""


class Diffusion(Task):
    """Trains a network to predict the noise in images from their captions.

    Some captions are left out, so that the network also learns to draw without words, and guidance
    by words can be strengthened (Ho and Salimans, "Classifier-free diffusion guidance", 2022).

    Args:
        channels: of an image.
        image_size: its height and width.
        caption_length: bytes of a caption.
        prompts: texts for which to draw images after each validation.
        times: the number of noise levels in training.
        without_words: the share of training images without a caption.
        guidance: the strength of guidance by words; 1 is as trained.
        steps: steps from noise to an image.
        judged: how many images to draw at most in a test, to be measured by the data's `quality`.
        parts: The network, which maps noisy images, times (N,) and captions to the noise, and how
            it is optimized: see `Parts`.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        caption_length: int,
        prompts: Sequence[str],
        times: Count = 100,
        without_words: Annotated[float, Field(ge=0, le=1)] = 0.1,
        guidance: Annotated[float, Field(ge=0)] = 2.0,
        steps: Count = 20,
        judged: Annotated[int, Field(ge=0)] = 1000,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.shape = (channels, image_size, image_size)
        self.caption_length = caption_length
        self.prompts = [str(prompt) for prompt in prompts]
        self.times = times
        self.without_words = without_words
        self.guidance = guidance
        self.steps = steps
        self.judged = judged

    def prepare(self, batch: Batch) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Inputs: images with noise, their noise levels and captions. Targets: the noise."""
        images, words = batch
        count, device = len(images), images.device
        time = (torch.randint(self.times, (count,), device=device) + 1).to(images) / self.times
        noise = torch.randn_like(images)
        said = torch.rand(count, device=device) >= self.without_words
        return (noised(images, noise, time), time, words * said.unsqueeze(1)), noise

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error of the predicted noise."""
        return F.mse_loss(outputs, targets)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss over the whole validation set."""
        outputs, targets = self.answer(batch)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss over the whole test set."""
        outputs, targets = self.answer(batch)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))

    def on_test_epoch_end(self) -> None:
        """Draw images for the captions of the test set, and let the data module measure them."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        seen = int(self.trainer.num_test_batches[0]) * getattr(data, "batch_size", 0)
        count = min(seen, self.judged)
        if count and isinstance(data, Judges):
            quality = data.quality(self.sample, count)
            self.log_dict({f"test/{name}": value for name, value in quality.items()})

    def sample(
        self,
        words: Tensor,
        steps: int | None = None,
        guidance: float | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Draw an image for each caption, the same on all ranks and devices.

        Args:
            words: Captions (N, L), uint8.
            steps: of the way; None takes those of the task, as for the next one.
            guidance: how far words lead.
            seed: the same one draws the same images.

        Returns:
            Images (N, C, H, W) in -1..1.
        """
        drawn = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(words), *self.shape, generator=drawn)
        guided = partial(
            self._noise_in,
            words=words.to(self.device),
            guidance=self.guidance if guidance is None else guidance,
        )
        beginning = noise.to(device=self.device, dtype=self.dtype)  # type: ignore[arg-type]
        return ddim(guided, beginning, self.steps if steps is None else steps)

    def _noise_in(self, images: Tensor, time: Tensor, words: Tensor, guidance: float) -> Tensor:
        if guidance == 1:
            told: Tensor = self(images, time, words)
            return told
        said = torch.cat([words, torch.zeros_like(words)])
        both: Tensor = self(torch.cat([images, images]), torch.cat([time, time]), said)
        told, untold = both.chunk(2)
        return untold + guidance * (told - untold)

    def displays(self) -> dict[str, Tensor]:
        """Images for each prompt, one below the other, always from the same noise."""
        return {"samples": self.drawn(self.prompts, ROWS, "task.prompts")}

    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        """Draw images of one text or several, and write them as one PNG file.

        Args:
            options: `prompt`, `count`, `steps`, `guidance`, `seed`: see `drawn` and `sample`; and
                `output`, the file.
            data_module: Not used.
            run_dir: Not used.

        Raises:
            UserError: A number cannot be, or a text is too long.
        """
        steps, guidance = options["steps"], options["guidance"]
        for key, number in (("count", options["count"]), ("steps", 1 if steps is None else steps)):
            if not isinstance(number, int) or number < 1:
                raise UserError(
                    f"predict.{key}={number}: must be a whole number from 1; try predict.{key}=8"
                )
        if guidance is not None and (not isinstance(guidance, int | float) or guidance < 0):
            raise UserError(
                f"predict.guidance={guidance}: must be a number from 0; try predict.guidance=2"
            )
        prompt = options["prompt"]
        prompts = [str(text) for text in (prompt if isinstance(prompt, list) else [prompt])]
        way = {"steps": steps, "guidance": guidance, "seed": options["seed"]}
        picture = self.drawn(prompts, options["count"], "predict.prompt", **way)
        Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(options["output"], "PNG")
        print(f"{options['count']} images of {', '.join(prompts)}: {options['output']}")

    def drawn(self, prompts: Sequence[str], count: int, key: str, **way: Any) -> Tensor:
        """Draw some images of each prompt: one picture, uint8 (3, H, W), a column for each.

        Args:
            prompts: what to draw.
            count: images of each.
            key: where the prompts come from.
            way: how: arguments of `sample`.
        """
        words = encoded(prompts, self.caption_length, key).repeat(count, 1)
        pixels = self.sample(words, **way).add(1).mul(127.5).round().to(torch.uint8)
        grid: Tensor = make_grid(pixels, nrow=len(prompts), padding=1, pad_value=128)
        return grid.repeat_interleave(SCALE, 1).repeat_interleave(SCALE, 2)
