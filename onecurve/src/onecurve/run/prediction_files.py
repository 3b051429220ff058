"""Writes predictions to files by their type: a table, images, text, or tensors."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..compat.of_torch import tree_leaves
from ..errors import UserError
from ..figures import image_grid
from .invocation import Invocation
from .protocols import ReadsImages

MOST_COLUMNS = 100
MOST_IMAGES = 100
BATCH_SIZE = 64  # for a data module that has none
SUFFIXES = (".csv", ".txt", ".png", ".pt")
PLAIN = (Tensor, str, int, float, complex, bytes, type(None))


def write(
    predictions: Any, output: Path, files: Sequence[Path] | None, class_names: Sequence[str]
) -> tuple[int, Path]:
    """Write the predictions of a data set.

    Args:
        predictions: Numbers (N,) or (N, C), or a dictionary of columns (N,): `output.csv`. Bytes
            (N, C, H, W) of grey values or colours: pictures in the folder `output`. A list of
            strings: `output.txt`. Everything else: `output.pt`, for ``torch.load``.
        output: The path, without the suffix or with one of these.
        files: The file of each row; without them rows are numbered.
        class_names: Names the C columns, if there are as many.

    Returns:
        The number of rows, and the path.
    """
    if columns := _columns(predictions, class_names):
        rows = list(zip(*columns.values(), strict=True))
        names: Sequence[object] = files or range(len(rows))
        path = with_suffix(output, ".csv")
        header = ["file" if files else "sample", *columns]
        return len(rows), _write_table(
            path, header, [[a, *b] for a, b in zip(names, rows, strict=True)]
        )
    if _are_pictures(predictions):
        return len(predictions), _pictures(predictions, with_suffix(output, ""))
    if _are_texts(predictions):
        path = with_suffix(output, ".txt")
        # A blank line separates texts of several lines.
        end = "\n\n" if any("\n" in text for text in predictions) else "\n"
        path.write_text("".join(text + end for text in predictions))
        return len(predictions), path
    odd = [leaf for leaf in tree_leaves(predictions) if not isinstance(leaf, PLAIN)]
    if odd:
        raise UserError(
            f"predict_step: returned {type(odd[0]).__name__}, which is not plain data; return "
            "tensors, numbers, strings, and dictionaries, lists and tuples of them"
        )
    path = with_suffix(output, ".pt")
    torch.save(predictions, path)
    leaves = tree_leaves(predictions)
    is_rows = isinstance(leaves[0], Tensor) and leaves[0].ndim and not isinstance(predictions, list)
    return len(leaves[0] if is_rows else predictions), path


def with_suffix(output: Path, suffix: str) -> Path:
    """The path with this suffix in place of another one of `SUFFIXES`."""
    plain = output.with_suffix("") if output.suffix in SUFFIXES else output
    return plain.with_name(plain.name + suffix)


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _columns(predictions: Any, class_names: Sequence[str]) -> dict[str, list[Any]] | None:
    """The columns of a table by name; None for predictions of another form."""
    if isinstance(predictions, Tensor) and predictions.ndim == 1:
        return {"prediction": _cells(predictions)}
    if isinstance(predictions, Tensor) and predictions.ndim == 2:
        count = predictions.shape[1]
        if not 0 < count <= MOST_COLUMNS:
            return None
        numbers = [str(number) for number in range(count)]
        names = class_names if len(set(class_names)) == count else numbers
        return dict(zip(names, map(_cells, predictions.unbind(1)), strict=True))
    if not isinstance(predictions, Mapping) or not predictions:
        return None
    columns = {str(name): value for name, value in predictions.items()}
    one_dimension = all(
        value.ndim == 1 if isinstance(value, Tensor) else _are_texts(value)
        for value in columns.values()
    )
    if not one_dimension or len({len(value) for value in columns.values()}) != 1:
        return None
    return {name: _cells(value) for name, value in columns.items()}


def _cells(column: Tensor | list[str]) -> list[Any]:
    """The values of a column, with as many digits as restore the same number."""
    if not isinstance(column, Tensor) or not column.is_floating_point():
        return list(column) if isinstance(column, list) else column.tolist()
    if column.dtype == torch.float64:
        return column.tolist()
    return [f"{value:.9g}" for value in column.tolist()]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _are_pictures(value: Any) -> bool:
    is_bytes = isinstance(value, Tensor) and value.dtype == torch.uint8
    return is_bytes and value.ndim == 4 and value.shape[1] in (1, 3, 4)


def _pictures(images: Tensor, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        pixels = image.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
        Image.fromarray(pixels).save(folder / f"{number:05}.png")
    return folder


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


def image_loader(data: Any, path: str) -> tuple[list[Path], DataLoader[Any]]:
    """The image files at a path, and a loader that reads them by the data module."""
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


def write_classes(
    predictions: Any,
    files: list[Path],
    names: list[str],
    output: Path,
    command: Invocation,
    *,
    figure: bool,
) -> list[str]:
    """Write a table of N images with their classes, if the predictions are probabilities (N, C).

    Args:
        predictions: What the task predicts.
        files: The N image files.
        names: Of the C classes.
        output: The path of the table.
        command: What was called, for the paths that are printed.
        figure: Whether to draw the images with their classes, too.

    Returns:
        Lines for the user that name what was written; empty if the task predicts something else.
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
    path = _write_table(
        with_suffix(output, ".csv"), header, [(*row[:2], f"{row[2]:.4f}") for row in rows]
    )
    lines = [f"{len(rows)} images classified: {command.short(path)}"]
    if figure:
        lines.append(f"Contact sheet: {command.short(_draw(rows, path.with_suffix('.png')))}")
    return lines


def _draw(rows: list[tuple[Path, str, float]], path: Path) -> Path:
    """Draw up to a hundred images with class and probability, the least certain ones first."""
    least_certain = sorted(rows, key=lambda row: row[2])[:MOST_IMAGES]
    images = [Image.open(file).convert("RGB") for file, _, _ in least_certain]
    titles = [f"{label} {probability:.0%}" for _, label, probability in least_certain]
    image_grid(images, titles).savefig(path, dpi=100)
    return path
