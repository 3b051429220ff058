"""The part that both tasks share: train a model of transformers by the loss that it computes."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack

import torch
from lightning.pytorch import LightningModule
from onecurve.errors import UserError
from torch import Tensor, nn
from torchmetrics import Metric

from .task import Parts, built

Batch = Mapping[str, Tensor]


class FineTuning(LightningModule):
    """Trains a model of transformers on batches of `input_ids`, `attention_mask` and `labels`.

    Args:
        parts: The model, and how it is optimized: see `Parts`.
    """

    metric: str
    """What is measured beside the loss, as logs call it."""
    classifies: bool
    """Whether it needs data with classes."""

    def __init__(self, **parts: Unpack[Parts]) -> None:
        super().__init__()
        self.network: Any = built(parts["network"])
        self.build_optimizer: Callable[..., torch.optim.Optimizer] = built(parts["optimizer"])
        self.build_scheduler: Callable[..., Any] = built(parts["scheduler"])
        self.monitor = parts.get("monitor", "val/loss")
        self.mode: Literal["min", "max"] = parts.get("mode", "min")
        self.val_metric = self.make_metric()
        self.test_metric = self.make_metric()

    def make_metric(self) -> Metric:
        """The metric beside the loss, which `measure` updates."""
        raise NotImplementedError

    def measure(self, metric: Metric, logits: Tensor, labels: Tensor) -> None:
        """Update the metric with the model's output for a batch."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Check that the model fits the data, and set its padding token.

        Raises:
            UserError: If the data have no classes, or the tokenizer is another model's, or samples
                are longer than positions.
        """
        data: Any = getattr(self.trainer, "datamodule", None)
        if hasattr(data, "tokenizer_name") and hasattr(data, "labels") != self.classifies:
            if self.classifies:
                raise UserError(
                    "task: classifies, but the data have no classes (data.labels); use "
                    "experiment=snippets, or task=causal_lm"
                )
            raise UserError(
                "task: predicts the next token, but the data have classes (data.labels); use "
                "experiment=snippets, or data=text_blocks"
            )
        if not hasattr(data, "tokenizer"):
            return
        tokens, known = len(data.tokenizer), self.network.config.vocab_size
        if tokens > known:
            raise UserError(
                f"data.tokenizer: has {tokens} tokens, and the model knows {known}; use the "
                f"model's own tokenizer, or, for random weights, data.vocab_size={tokens}"
            )
        config: Any = self.network.config
        key = "block_size" if hasattr(data, "block_size") else "max_length"
        length, most = getattr(data, key, 0), getattr(config, "max_position_embeddings", None)
        tables = [part for part in self.network.modules() if isinstance(part, nn.Embedding)]
        # Rotary positions are computed for any length.
        if most is not None and length > most and any(t.num_embeddings == most for t in tables):
            raise UserError(
                f"data.{key}={length}: the model knows {most} positions; use data.{key}={most}"
            )
        # A decoder that classifies looks for the last token that is no padding.
        if config.pad_token_id is None:
            config.pad_token_id = data.tokenizer.pad_token_id

    def forward(self, **batch: Tensor) -> Any:
        """Return the model's output: logits, and its loss if `labels` are among the arguments."""
        return self.network(**batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The model's own loss."""
        loss: Tensor = self.network(**batch).loss
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and metric over the whole validation set."""
        self._evaluate("val", self.val_metric, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and metric over the whole test set."""
        self._evaluate("test", self.test_metric, batch)

    def _evaluate(self, part: str, metric: Metric, batch: Batch) -> None:
        outputs = self.network(**batch)
        # bfloat16 has too few digits for a metric; torchmetrics adds up in float32 by itself.
        logits = outputs.logits.to(torch.promote_types(outputs.logits.dtype, torch.float32))
        metric.set_dtype(logits.dtype)
        self.measure(metric, logits, batch["labels"])
        self.log(f"{part}/loss", outputs.loss, prog_bar=True)
        self.log(f"{part}/{self.metric}", metric, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the scheduler if there is one."""
        optimizer = self.build_optimizer(self.network.named_parameters())
        scheduler = self.build_scheduler(
            optimizer,
            total_steps=self.trainer.estimated_stepping_batches,
            monitor=self.monitor,
            mode=self.mode,
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler} if scheduler else optimizer
