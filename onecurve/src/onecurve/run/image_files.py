"""Image files of the user's choice: as batches of a data module, and as a table of classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import UserError
from .prediction_files import named, table
from .protocols import ReadsImages
from .to_type import Typed

BATCH_SIZE = 64
"""Where a data module has none of its own."""


class _Files(Dataset[Tensor]):
    def __init__(self, files: Sequence[Path], data: ReadsImages) -> None:
        self.files = files
        self.data = data

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return self.data.read_images([self.files[index]])[0]


def _without_labels(images: list[Tensor]) -> tuple[Tensor, None]:
    return torch.stack(images), None


def loader_of(data: Any, path: str) -> tuple[list[Path], DataLoader[Any]]:
    """The image files at a path, and the loader that a data module makes of them.

    Raises:
        UserError: If there are none.
    """
    files: list[Path] = data.find_images(path)
    if not files:
        raise UserError(
            f"predict.images={path}: no images in this folder; name another, or one file"
        )
    loader = DataLoader(
        _Files(files, data),
        batch_size=getattr(data, "batch_size", BATCH_SIZE),
        num_workers=getattr(data, "num_workers", 0),
        collate_fn=_without_labels,
    )
    return files, loader


def classified(
    predictions: Any,
    files: list[Path],
    names: list[str],
    output: Path,
    typed: Typed,
    *,
    figure: bool,
) -> list[str]:
    """Write the class of each file, if the predictions are a probability for each class.

    Args:
        predictions: What the task predicts: of a classifier, probabilities (N, C).
        files: What of.
        names: What the C classes are called.
        output: The table: file, class, probability.
        typed: The command, for how a path is shown.
        figure: Draw the images with their classes beside it.

    Returns:
        Lines that say where; none if they are not.

    Raises:
        UserError: If a figure is asked for, and they are not.
    """
    if not isinstance(predictions, Tensor) or predictions.shape != (len(files), len(names)):
        if figure:
            raise UserError(
                "predict.figure=true: shows classes, and this task predicts something else; "
                "leave it out"
            )
        return []
    best = predictions.max(dim=1)
    labels = [names[index] for index in best.indices.tolist()]
    rows = list(zip(files, labels, best.values.tolist(), strict=True))
    header = ["file", "class", "probability"]
    path = table(named(output, ".csv"), header, [(*row[:2], f"{row[2]:.4f}") for row in rows])
    lines = [f"{len(rows)} images classified: {typed.short(path)}"]
    if figure:
        from .contact_sheet import draw

        lines.append(f"Contact sheet: {typed.short(draw(rows, path.with_suffix('.png')))}")
    return lines
