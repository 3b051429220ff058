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


class Text(Config):
    root: Annotated[Any, existing("a folder of text files, or null for Python's own")]
    context: Count
    batch_size: Count
    num_workers: int = Field(ge=0)
    val_fraction: Fraction
    test_fraction: Fraction
    piece_bytes: Count | None
    train_bytes: Count | None
    val_bytes: Count | None
    test_bytes: Count | None
    cache: str


class GPT(Config):
    context: Count
    width: Count
    depth: Count
    heads: Count

    def refusals(self, run: ComposedRun, key: str) -> Iterator[str]:
        """Why its heads cannot be made, or why it cannot read the windows of the data."""
        width, heads = self.width, self.heads
        if width % heads:
            fits = max(number for number in range(1, min(width, heads) + 1) if width % number == 0)
            yield (
                f"{key}.heads={heads}: must divide {key}.width={width}; use {key}.heads={fits}, "
                f"or {key}.width={-(-width // heads) * heads}"
            )
        window = run.get("data.context")
        if isinstance(window, int) and window > self.context:
            yield (
                f"{key}.context={self.context}: must be at least data.context={window}; "
                f"use {key}.context={window}, or leave it out"
            )


class LanguageModel(Config):
    context: Count
    monitor: str
    mode: Literal["min", "max"]
    prompt: str = "def "
    length: int = Field(200, ge=0)


MODELS = {
    "data.text.Text": Text,
    "models.gpt.gpt": GPT,
    "tasks.language_model.LanguageModel": LanguageModel,
}
