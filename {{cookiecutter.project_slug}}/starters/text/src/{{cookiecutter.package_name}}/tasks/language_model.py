"""Language model: which byte comes next."""

import codecs
import re
from collections.abc import Iterator, Mapping
from math import log
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from onecurve.errors import UserError
from torch import Tensor
from torchmetrics.text import Perplexity

from .task import Parts, Task

# Control characters, which could move the cursor of a terminal, or worse.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LanguageModel(Task):
    """Trains a network with the cross entropy of the next byte, and continues texts with it.

    Args:
        context: Bytes that the network sees at once.
        prompt: A text to continue after each validation, if a callback shows it.
        length: The number of bytes to add to it.
        parts: The network, which maps bytes (N, T) to logits (N, T, 256), and how it is optimized:
            see `Parts`.
    """

    def __init__(
        self,
        context: int,
        prompt: str = "def ",
        length: int = 200,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.context = context
        self.prompt = prompt
        self.length = length
        self.val_perplexity = Perplexity()
        self.test_perplexity = Perplexity()

    def prepare(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs: the bytes of windows (N, T + 1) without the last. Targets: the next bytes."""
        text = batch.long()
        return text[:, :-1], text[:, 1:]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits (N, T, 256) and bytes (N, T), in nats."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Loss, bits per byte and perplexity over the whole validation set."""
        self._measure("val", self.val_perplexity, batch)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Loss, bits per byte and perplexity over the whole test set."""
        self._measure("test", self.test_perplexity, batch)

    def _measure(self, part: str, perplexity: Perplexity, batch: Tensor) -> None:
        outputs, targets = self.answer(batch)
        loss, size = self.loss(outputs, targets), len(targets)
        # torchmetrics sums in float32, whatever the precision of the run.
        perplexity.set_dtype(torch.promote_types(outputs.dtype, torch.float32))
        perplexity.update(outputs, targets)
        self.log(f"{part}/loss", loss, batch_size=size, prog_bar=True)
        self.log(f"{part}/bits_per_byte", loss / log(2), batch_size=size, prog_bar=True)
        self.log(f"{part}/perplexity", perplexity)

    def on_test_epoch_end(self) -> None:
        """Also log the bits per byte of baselines, if the data module has any."""
        data: Any = getattr(self.trainer, "datamodule", None)
        for name, bits in data.baselines().items() if hasattr(data, "baselines") else ():
            self.log(f"test/bits_per_byte_{name}", bits)

    @torch.no_grad()
    def generate(
        self, prompt: bytes, length: int, temperature: float = 0.8, seed: int = 0
    ) -> Iterator[bytes]:
        """Continue a text, byte by byte. Every rank makes the same call, and gets all bytes.

        Args:
            prompt: The text to continue; the network sees the last `context` bytes.
            length: How many bytes to add.
            temperature: 0 takes the most likely byte each time; 1 draws from the prediction.
            seed: The seed of random draws.
        """
        draws = torch.Generator().manual_seed(seed)
        seen = torch.tensor(list(prompt or b"\n"))
        for _ in range(length):
            seen = seen[-self.context :]
            # Inputs have one shape: bytes after a position do not change its prediction.
            window = F.pad(seen, (0, self.context - len(seen)))
            outputs = self(window[None].to(self.device))
            logits = outputs[0, len(seen) - 1].double().cpu()
            if temperature == 0:
                byte = logits.argmax().view(1)
            else:
                byte = torch.multinomial((logits / temperature).softmax(0), 1, generator=draws)
            seen = torch.cat([seen, byte])
            yield bytes(byte.tolist())

    def displays(self) -> dict[str, str]:
        """The continued prompt, for TensorBoard or Weights & Biases."""
        made = b"".join(self.generate(self.prompt.encode(), self.length))
        return {"continuation": self.prompt + _readable(made.decode(errors="replace"))}

    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        """Continue a prompt, and write the text to the terminal and to a file.

        Args:
            options: `prompt`, `length`, `temperature` and `seed`: see `generate`; and `output`.
            data_module: Not used.
            run_dir: Not used.

        Raises:
            UserError: If a number is out of range.
        """
        prompt, length, temperature = (options[key] for key in ("prompt", "length", "temperature"))
        if not isinstance(length, int) or length < 1:
            raise UserError(
                f"predict.length={length}: must be a whole number from 1; try predict.length=300"
            )
        if temperature < 0:
            raise UserError(
                f"predict.temperature={temperature}: must be a number from 0; "
                "try predict.temperature=0.8"
            )
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = str(prompt).encode()
        print(prompt, end="", flush=True)
        with Path(options["output"]).open("wb") as file:
            file.write(text)
            for byte in self.generate(text, length, temperature, options["seed"]):
                file.write(byte)
                print(_readable(decoder.decode(byte)), end="", flush=True)
        print(_readable(decoder.decode(b"", final=True)), flush=True)


def _readable(text: str) -> str:
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
