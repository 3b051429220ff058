"""Writes predictions to files by their type: a table, images, text, or tensors."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from ..compat.of_torch import tree_leaves
from ..errors import UserError
from ..figures import image_grid
from .protocols import ReadsImages

MOST_COLUMNS = 100
MOST_IMAGES = 100
BATCH_SIZE = 64  # for a data module that has none
SUFFIXES = (".csv", ".txt", ".png", ".pt")
Written = list[tuple[str, Path]]
PLAIN = (Tensor, str, int, float, complex, bytes, type(None))


def write(
    predictions: Any,
    output: Path,
    files: Sequence[Path] | None,
    class_names: Sequence[str],
    figure: bool = False,
) -> tuple[int, Written]:
    """Write the predictions of a data set.

    Args:
        predictions: Numbers (N,) or (N, C), or a dictionary of columns (N,): `output.csv`. Of image
            files, probabilities (N, C) become the class of each. Bytes (N, C, H, W) of grey values
            or colours: pictures in the folder `output`. A list of strings: `output.txt`. Everything
            else: `output.pt`, for ``torch.load``.
        output: The path, without the suffix or with one of these.
        files: The image file of each row; without them rows are numbered.
        class_names: The names of C classes or columns, if there are as many.
        figure: Whether to draw the image files with their classes, too.

    Returns:
        The number of rows, and for each file what is in it, and its path.
    """
    shape = predictions.shape if isinstance(predictions, Tensor) else None
    if files and shape == (len(files), len(class_names)):
        return len(files), _write_classes(predictions, files, class_names, output, figure)
    if figure:
        raise UserError(
            "predict.figure=true: shows classes, and this task predicts something else; leave it "
            "out"
        )
    count, path = _write_rows(predictions, output, files, class_names)
    return count, [(f"{count} predictions", path)]


def _write_rows(
    predictions: Any, output: Path, files: Sequence[Path] | None, class_names: Sequence[str]
) -> tuple[int, Path]:
    if columns := _columns(predictions, class_names):
        path = with_suffix(output, ".csv")
        count = len(next(iter(columns.values())))
        names: Sequence[object] = files or range(count)
        header = ["file" if files else "sample", *columns]
        _write_table(path, header, zip(names, *columns.values(), strict=True))
        return count, path
    if _are_pictures(predictions):
        path = with_suffix(output, "")
        path.mkdir(exist_ok=True)
        for number, image in enumerate(predictions):
            pixels = image.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
            Image.fromarray(pixels).save(path / f"{number:05}.png")
        return len(predictions), path
    if _are_texts(predictions):
        path = with_suffix(output, ".txt")
        # A blank line separates texts of several lines.
        end = "\n\n" if any("\n" in text for text in predictions) else "\n"
        path.write_text("".join(text + end for text in predictions))
        return len(predictions), path
    leaves = tree_leaves(predictions)
    if odd := [leaf for leaf in leaves if not isinstance(leaf, PLAIN)]:
        raise UserError(
            f"predict_step: returned {type(odd[0]).__name__}, which is not plain data; return "
            "tensors, numbers, strings, and dictionaries, lists and tuples of them"
        )
    path = with_suffix(output, ".pt")
    torch.save(predictions, path)
    is_rows = isinstance(leaves[0], Tensor) and leaves[0].ndim and not isinstance(predictions, list)
    return len(leaves[0] if is_rows else predictions), path


def _write_classes(
    probabilities: Tensor, files: Sequence[Path], names: Sequence[str], output: Path, figure: bool
) -> Written:
    """Write the class of each image; the figure has the least certain ones, those first."""
    best = probabilities.max(dim=1)
    labels = [names[index] for index in best.indices.tolist()]
    rows = list(zip(files, labels, best.values.tolist(), strict=True))
    table = with_suffix(output, ".csv")
    header = ["file", "class", "probability"]
    _write_table(table, header, ((file, label, f"{share:.4f}") for file, label, share in rows))
    written = [(f"{len(rows)} images classified", table)]
    if figure:
        least_certain = sorted(rows, key=lambda row: row[2])[:MOST_IMAGES]
        images = [Image.open(file).convert("RGB") for file, _, _ in least_certain]
        titles = [f"{label} {share:.0%}" for _, label, share in least_certain]
        sheet = table.with_suffix(".png")
        image_grid(images, titles).savefig(sheet, dpi=100)
        written.append(("Contact sheet", sheet))
    return written


def with_suffix(output: Path, suffix: str) -> Path:
    """The path with this suffix in place of another one of `SUFFIXES`."""
    plain = output.with_suffix("") if output.suffix in SUFFIXES else output
    return plain.with_name(plain.name + suffix)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


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


def image_loader(data: Any, path: str) -> tuple[list[Path], DataLoader[Any]]:
    """The image files at a path, and a loader that reads them by the data module."""
    files: list[Path] = data.find_images(path)
    if not files:
        raise UserError(
            f"predict.images={path}: no images in this folder; name another, or one file"
        )
    loader: DataLoader[Any] = DataLoader(
        files,  # type: ignore[arg-type]
        batch_size=getattr(data, "batch_size", BATCH_SIZE),
        num_workers=getattr(data, "num_workers", 0),
        collate_fn=partial(_read_without_labels, data),
    )
    return files, loader


def _read_without_labels(data: ReadsImages, files: Sequence[Path]) -> tuple[Tensor, None]:
    return data.read_images(files), None
