"""Causal language modelling: which token comes next."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onecurve.errors import UserError
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.text import Perplexity

from .fine_tuning import FineTuning

# What would move the cursor of a terminal, or worse.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class CausalLM(FineTuning):
    """Trains an `AutoModelForCausalLM`, and continues texts with it."""

    metric = "perplexity"
    classifies = False

    def make_metric(self) -> Metric:
        """Perplexity over the tokens that are not padding."""
        return Perplexity(ignore_index=-100)

    def weight(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The labels that the loss is a mean over: the next tokens that are not padding."""
        return (batch["labels"][:, 1:] != -100).sum()

    def measure(self, metric: Metric, logits: Tensor, labels: Tensor) -> None:
        """Compare logits (N, T, V) with the token after each position, as the loss does."""
        metric.update(logits[:, :-1], labels[:, 1:])

    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        """Continue a prompt, to the terminal and to a file.

        Args:
            options: `prompt`, `length` in tokens, `temperature` (0 takes the most likely token each
                time), and `output`.
            data_module: Its tokenizer is used.
            run_dir: Not used.

        Raises:
            UserError: If a number cannot be.
        """
        length, temperature = options["length"], options["temperature"]
        if not isinstance(length, int) or length < 1:
            raise UserError(
                f"predict.length={length}: must be a whole number from 1; try predict.length=100"
            )
        if temperature < 0:
            raise UserError(
                f"predict.temperature={temperature}: must be a number from 0; "
                "try predict.temperature=0.8"
            )
        data_module.prepare_data()
        tokenizer = data_module.load_tokenizer()
        prompt = tokenizer(str(options["prompt"]), return_tensors="pt").to(self.device)
        draw = {"do_sample": True, "temperature": float(temperature), "top_k": 0}
        made = self.network.generate(
            input_ids=prompt["input_ids"],
            attention_mask=prompt["attention_mask"],
            max_new_tokens=length,
            pad_token_id=tokenizer.pad_token_id,
            **(draw if temperature else {"do_sample": False}),
        )
        text = tokenizer.decode(made[0], skip_special_tokens=True)
        Path(f"{options['output']}.txt").write_text(text, encoding="utf-8")
        print(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text))
