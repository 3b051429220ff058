"""Encodes captions: bytes with positions, and one layer of attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Words(nn.Module):
    """Turns each caption into one vector.

    Args:
        length: bytes of a caption.
        width: of the vector; a multiple of `heads`.
        heads: parts of a letter's vector that look at the other letters separately.
    """

    def __init__(self, length: int, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.letters = nn.Embedding(256, width)
        self.places = nn.Parameter(0.5 * torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.meaning = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """Map bytes (N, length), uint8 and 0 after the last one, to (N, width)."""
        known = words > 0
        # Where nothing is said there is still one letter, 0 at the first place: no mean of none.
        known[:, 0] = True
        values = self.letters(words.int()) + self.places
        parts = self.query_key_value(self.norm(values)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, known[:, None, None, :])
        values = values + self.attended(heads.transpose(1, 2).flatten(2))
        counted = known.unsqueeze(-1).to(values)
        meaning: Tensor = self.meaning((values * counted).sum(1) / counted.sum(1))
        return meaning
