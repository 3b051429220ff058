"""Images with captions instead of labels, to learn to draw from words."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from .captions import decoded, encoded
from .digits import Digits
from .images import Count, Datasets, ImageDataModule, InMemoryImages
from .judge import Judge, frechet_distance, the_judge
from .torchvision_sets import TorchvisionImages

MOST_KNOWN = 10_000  # images of the training set that the others are compared with


class InWords(ImageDataModule):
    """Replaces the labels of another data module by captions.

    The loaders deliver images and captions (N, caption_length), uint8. Each image has one of the
    captions of its class, chosen at random once.

    Args:
        captions: templates of captions, with {name} for the class.
        synonyms: further names of a class, by its first name.
        caption_length: bytes of a caption.
        options: those of the data module.
    """

    def __init__(
        self,
        *,
        captions: Sequence[str],
        synonyms: Mapping[str, Sequence[Any]],
        caption_length: Count,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        names = [[name, *map(str, synonyms.get(name, ()))] for name in self.class_names]
        self.ways = [[way.format(name=name) for way in captions for name in own] for own in names]
        self.words = [encoded(ways, caption_length, "data.captions") for ways in self.ways]
        self.labels: list[Tensor] = []

    def prepare_data(self) -> None:
        """Download the files; before a test, train the judge, once for all processes."""
        super().prepare_data()
        if self.trainer is not None and self.trainer.testing:
            self.setup("test")
            self.judge()

    def load_datasets(self) -> Datasets:
        """Load the images, and replace their labels by captions."""
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
        """The texts of captions (N, caption_length), for displays."""
        return decoded(targets)

    def quality(self, draw: Callable[[Tensor], Tensor], count: int) -> dict[str, float]:
        """Measure images drawn for the captions of test images; also real images and noise.

        Args:
            draw: makes images (N, C, H, W) in -1..1 from captions (N, caption_length).
            count: the number of test images.

        Returns:
            By name: the share of images that the judge recognises as their caption says, and the
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
        """The judge, trained on the training images, now or earlier."""
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
