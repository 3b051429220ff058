"""Prints the layers of the network and their parameters before training."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary
from rich.table import Table

from ..arguments import configured_by
from ..compat.of_lightning import LayersAlone
from ..errors import plain_console
from .options import LayerTableOptions


class LayerTable(ModelSummary):
    """Lightning's summary as a narrow table, without the columns that need an example input.

    So the network is not called, which may fail before training: Lightning calls it with a task's
    `example_input_array` as it is, in single precision.
    """

    @configured_by(LayerTableOptions, "callbacks.model_summary")
    def __init__(self, options: LayerTableOptions) -> None:
        super().__init__(options.max_depth, **(options.model_extra or {}))

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> LayersAlone:
        return LayersAlone(pl_module, max_depth=self._max_depth)

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Print the table. Lightning calls this on rank 0."""
        columns = dict(summary_data)
        table = Table()
        table.add_column("layer")
        table.add_column("type")
        table.add_column("parameters", justify="right")
        for row in zip(columns["Name"], columns["Type"], columns["Params"], strict=True):
            table.add_row(*row)
        console = plain_console()
        console.print(table)
        console.print(
            f"{total_parameters:,} parameters, {trainable_parameters:,} of them trainable, "
            f"{model_size:.1f} MB",
            highlight=False,
        )
