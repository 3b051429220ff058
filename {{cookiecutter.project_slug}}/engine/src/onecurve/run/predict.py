"""Classifies images with a checkpoint: a row an image in a CSV file, and a sheet of pictures."""

import csv
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ..checkpoint.contents import read_checkpoint, trained_config
from ..errors import UserError
from . import record
from .fit import build_task


def work(config: dict[str, Any], run_dir: Path) -> dict[str, float]:
    """Predict the class of every image.

    The data module of the checkpoint's configuration finds and reads the images (`find_images`,
    `read_images`), so that they reach the network as those of training did.

    Args:
        config: The resolved configuration of `predict.py`.
        run_dir: Where the run's record goes; the output's own path is in the configuration.

    Returns:
        Nothing to compare runs by: an empty dictionary.

    Raises:
        UserError: If there is no image, or one cannot be read.
    """
    cfg = OmegaConf.create(config)
    checkpoint = read_checkpoint(cfg.checkpoint, is_checked=True)
    trained = OmegaConf.create(trained_config(checkpoint, cfg.checkpoint))
    data = instantiate(trained.data)
    files = data.find_images(cfg.predict.images)
    if not files:
        raise UserError(
            f"predict.images={cfg.predict.images}: no images in this folder; "
            "name another, or one file"
        )
    device = _device(cfg.predict.device)
    task = build_task(trained)
    task.load_state_dict(checkpoint["state_dict"])
    task.eval().to(device)

    rows: list[tuple[Path, str, float]] = []
    with torch.inference_mode():
        for batch_idx, batch in enumerate(_batches(files, cfg.predict.batch_size)):
            inputs = data.read_images(batch).to(device)
            best = task.predict_step((inputs, None), batch_idx).max(dim=-1)
            labels = [data.class_names[index] for index in best.indices.tolist()]
            rows += zip(batch, labels, best.values.tolist(), strict=True)

    output = Path(cfg.predict.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "class", "probability"])
        writer.writerows((path, label, f"{share:.4f}") for path, label, share in rows)
    print(f"{len(rows)} images classified: {output}")
    if cfg.predict.figure:
        from .contact_sheet import draw

        print(f"Contact sheet: {draw(rows, output.with_suffix('.png'))}")
    record.finished(run_dir, {"checkpoint": str(cfg.checkpoint), "images": len(rows)})
    return {}


def _batches(files: list[Path], size: int) -> list[list[Path]]:
    return [files[start : start + size] for start in range(0, len(files), size)]


def _device(name: str) -> torch.device:
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")
    return torch.device(name)
