"""Models of the arguments of this project's classes, validated before torch is imported.

A class without a model here validates its arguments when it is built.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from onecurve import Config
from onecurve.app.composed_run import ComposedRun
from onecurve.config_model import existing
from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Dtype = Literal["float32", "bfloat16", "float16", "float64"]


class Tokenized(Config):
    """The arguments that both kinds of data take."""

    tokenizer: str | None
    vocab_size: Count
    batch_size: Count
    num_workers: int = Field(ge=0)
    val_fraction: Fraction
    test_fraction: Fraction
    cache: str

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse fractions that leave nothing to train on."""
        if self.val_fraction + self.test_fraction >= 1:
            yield (
                f"{key}.val_fraction={self.val_fraction:g}: with "
                f"{key}.test_fraction={self.test_fraction:g} nothing is left to train on; use "
                f"{key}.val_fraction={(1 - self.test_fraction) / 2:g}"
            )


class TextBlocks(Tokenized):
    root: Annotated[Any, existing("a folder of text files, or null for Python's own sources")]
    block_size: Count
    train_blocks: Count | None
    val_blocks: Count | None
    test_blocks: Count | None


class Snippets(Tokenized):
    csv: Annotated[
        Any, existing("one with the columns text and label, or null for Python's own sources")
    ]
    labels: list[str]
    max_length: Count


class Pretrained(Config):
    name: str
    labels: list[str] | None
    dtype: Dtype | Literal["auto"]
    gradient_checkpointing: bool
    lora: Count | None
    lora_targets: list[str] | str | None


class FromConfig(Config):
    family: str
    labels: list[str] | None
    dtype: Dtype
    gradient_checkpointing: bool
    config: dict[str, Any]


class FineTuning(Config):
    monitor: str
    mode: Literal["min", "max"]


class CausalLM(FineTuning):
    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse data with classes."""
        if run.get("data.labels") is not None:
            yield (
                f"{key}: predicts the next token, but the data have classes (data.labels); use "
                "experiment=snippets, or data=text_blocks"
            )


class TextClassification(FineTuning):
    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse data without classes."""
        if run.get("data.labels") is None:
            yield (
                f"{key}: classifies, but the data have no classes (data.labels); use "
                "experiment=snippets, or task=causal_lm"
            )


class SavePretrained(FineTuning):
    folder: str

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Refuse sharded checkpoints, for which no rank gathers all weights."""
        if run.get("checkpoint.format") == "sharded":
            yield (
                f"{key}: saves full weights, but checkpoint.format=sharded gathers none; use "
                "checkpoint.format=file, or leave save_pretrained out"
            )


MODELS = {
    "callbacks.save_pretrained.SavePretrained": SavePretrained,
    "data.snippets.Snippets": Snippets,
    "data.text_blocks.TextBlocks": TextBlocks,
    "models.transformer.from_config": FromConfig,
    "models.transformer.pretrained": Pretrained,
    "tasks.causal_lm.CausalLM": CausalLM,
    "tasks.text_classification.TextClassification": TextClassification,
}
