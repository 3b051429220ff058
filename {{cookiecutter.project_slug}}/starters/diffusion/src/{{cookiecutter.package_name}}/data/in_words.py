"""Images with words instead of labels: what a network learns to draw from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from onecurve.data.digits import Digits
from onecurve.data.images import Datasets, ImageDataModule
from onecurve.data.in_memory import InMemoryImages
from onecurve.data.torchvision_sets import TorchvisionImages
from torch import Tensor

from .captions import decoded, encoded
from .judge import Judge, frechet_distance, the_judge

MOST_KNOWN = 10_000  # images of the training set that the others are compared with


class InWords(ImageDataModule):
    """Says in words what the images of another data module show.

    The loaders deliver images and captions (N, caption_length), uint8. Each image has one of the
    captions of its class, drawn once.

    Args:
        captions: ways to say what an image shows, with {name} for its class.
        synonyms: other names of a class, by its first one.
        caption_length: bytes of a caption.
        options: those of the data module.
    """

    def __init__(
        self,
        *,
        captions: Sequence[str],
        synonyms: Mapping[str, Sequence[str]],
        caption_length: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        names = [[name, *map(str, synonyms.get(name, ()))] for name in self.class_names]
        self.ways = [[way.format(name=name) for way in captions for name in own] for own in names]
        self.words = [encoded(ways, caption_length, "data.captions") for ways in self.ways]
        self.labels: list[Tensor] = []

    def prepare_data(self) -> None:
        """Fetch the files; before a test, let the judge learn, once for all processes."""
        super().prepare_data()
        if self.trainer is not None and self.trainer.testing:
            self.setup("test")
            self.judge()

    def load_datasets(self) -> Datasets:
        """Load the images, and put words in the place of the labels."""
        parts: Any = super().load_datasets()
        self.labels = [part.labels for part in parts]
        train, val, test = (self._in_words(part, seed) for seed, part in enumerate(parts))
        return train, val, test

    def _in_words(self, part: InMemoryImages, seed: int) -> InMemoryImages:
        drawn = torch.rand(len(part), generator=torch.Generator().manual_seed(seed))
        words = torch.empty(len(part), self.words[0].shape[1], dtype=torch.uint8)
        for label, ways in enumerate(self.words):
            of_class = part.labels == label
            words[of_class] = ways[(drawn[of_class] * len(ways)).long()]
        return InMemoryImages(part.images, words)

    def titles(self, targets: Tensor) -> list[str]:
        """What captions (N, caption_length) say: for displays."""
        return decoded(targets)

    def quality(self, draw: Callable[[Tensor], Tensor], count: int) -> dict[str, float]:
        """Ask the judge what is drawn for the words of test images, beside real ones and noise.

        Args:
            draw: makes images (N, C, H, W) in -1..1 of captions (N, caption_length).
            count: how many test images.

        Returns:
            By name: the share of images that the judge takes for what the words say, and the
            Fréchet distance of its features to those of training images.
        """
        train, _, test = self._loaded()
        judge, labels = self.judge(), self.labels[2][:count]
        known = self.normalize(train.images[:MOST_KNOWN])
        noise = torch.Generator().manual_seed(0)
        images = {
            "": draw(test.labels[:count]).cpu(),
            "_of_real": self.normalize(test.images[:count]),
            "_of_noise": torch.randn(test.images[:count].shape, generator=noise),
        }
        found = {}
        for name, of_words in images.items():
            agrees = judge.labels(of_words) == labels
            found[f"agreement{name}"] = agrees.double().mean().item()
            if count > 1:
                found[f"frechet{name}"] = frechet_distance(judge, of_words, known)
        return found

    def judge(self) -> Judge:
        """One that has learned from the training images, or learns now."""
        train, _, _ = self._loaded()
        number = crc32(self.labels[0].numpy().tobytes(), crc32(train.images.numpy().tobytes()))
        file = Path(self.root or "data") / f"judge-{number:08x}.pt"
        inputs = self.normalize(train.images)
        return the_judge(file, inputs, self.labels[0], self.num_classes)

    def _loaded(self) -> Any:
        assert self.datasets is not None
        return self.datasets


class DigitsInWords(InWords, Digits):
    """scikit-learn's digits."""


class TorchvisionInWords(InWords, TorchvisionImages):
    """MNIST, Fashion-MNIST and their like."""
