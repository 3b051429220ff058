"""Predictions as files: a table, pictures, text, or tensors; what they are decides."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..compat.of_torch import tree_leaves
from ..errors import UserError

MOST_COLUMNS = 100
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
        files: What the rows are about; without it they are numbered.
        class_names: Names the C columns, if there are as many.

    Returns:
        How many rows there are, and where.

    Raises:
        UserError: If they are no plain data.
    """
    if columns := _columns(predictions, class_names):
        rows = list(zip(*columns.values(), strict=True))
        names: Sequence[object] = files or range(len(rows))
        path = named(output, ".csv")
        header = ["file" if files else "sample", *columns]
        return len(rows), table(path, header, [[a, *b] for a, b in zip(names, rows, strict=True)])
    if _are_pictures(predictions):
        return len(predictions), _pictures(predictions, named(output, ""))
    if _are_texts(predictions):
        path = named(output, ".txt")
        # Texts of several lines need something between them.
        end = "\n\n" if any("\n" in text for text in predictions) else "\n"
        path.write_text("".join(text + end for text in predictions))
        return len(predictions), path
    odd = [leaf for leaf in tree_leaves(predictions) if not isinstance(leaf, PLAIN)]
    if odd:
        raise UserError(
            f"predict_step: returned {type(odd[0]).__name__}, which is no plain data; return "
            "tensors, numbers, strings, and dictionaries, lists and tuples of them"
        )
    path = named(output, ".pt")
    torch.save(predictions, path)
    leaves = tree_leaves(predictions)
    is_rows = isinstance(leaves[0], Tensor) and leaves[0].ndim and not isinstance(predictions, list)
    return len(leaves[0] if is_rows else predictions), path


def named(output: Path, suffix: str) -> Path:
    """The path with this suffix, and without another one that is meant for predictions."""
    plain = output.with_suffix("") if output.suffix in SUFFIXES else output
    return plain.with_name(plain.name + suffix)


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _columns(predictions: Any, class_names: Sequence[str]) -> dict[str, list[Any]] | None:
    """The columns of a table by name; None if these predictions are none."""
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
    """As many digits as bring the same number back."""
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
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        pixels = image.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
        Image.fromarray(pixels).save(folder / f"{number:05}.png")
    return folder
