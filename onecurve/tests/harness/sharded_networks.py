"""Networks for tests of tensor parallelism: some can be sharded, some cannot."""

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ENTRIES, WIDTH, LENGTH = 24, 16, 7


class Task(LightningModule):
    """What every task has: a network, and a mean."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.double()

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of logits (N, T, C), or (N, C)."""
        if outputs.ndim == 2:
            return F.cross_entropy(outputs, targets)
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Embedding(nn.Module):
    """Tokens (N, T) to vectors: looked up twice, and changed in between.

    Its positions are not looked up, and stay whole.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ENTRIES, WIDTH, padding_idx=5)
        self.positions = nn.Embedding(LENGTH + 1, WIDTH)

    def forward(self, tokens: Tensor) -> Any:
        seen, other = self.tokens(tokens), self.tokens(tokens.flip(1))
        seen += self.positions.weight[: tokens.shape[1]]
        return seen + seen * other

    def tensor_plan(self) -> dict[str, str]:
        return {"tokens": "vocab"}


class Head(nn.Linear):
    """Vectors to logits, which stay cut."""

    def tensor_plan(self) -> dict[str, str]:
        return {"": "vocab"}


def attended(heads: Any, **options: Any) -> Tensor:
    """What queries, keys and values see, each (N, T, heads x 4), in the same form."""
    split = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in heads)
    return F.scaled_dot_product_attention(*split, **options).transpose(1, 2).flatten(2)


class Fused(nn.Module):
    """Rows of `qkv` are those of the first head, then those of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 4
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        samples, length, _ = inputs.shape
        qkv = self.qkv(inputs).view(samples, length, -1, 3, self.head_dim)
        seen = F.scaled_dot_product_attention(*qkv.permute(3, 0, 2, 1, 4), is_causal=True)
        return self.output(seen.transpose(1, 2).flatten(2))

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads"}


class Grouped(nn.Module):
    """Two queries for each key and value; the numbers of heads are attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.kv_heads = 4, 2
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: Tensor) -> Any:
        query = self.wq(inputs).unflatten(-1, (self.heads, 4)).flatten(2)
        key, value = (
            layer(inputs).unflatten(-1, (self.kv_heads, 4)).flatten(2)
            for layer in (self.wk, self.wv)
        )
        return self.wo(attended((query, key, value), is_causal=True, enable_gqa=True))

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads"}


class Gated(nn.Module):
    """The layer that sums up is not the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 3 * WIDTH)
        self.down_proj = nn.Linear(3 * WIDTH, WIDTH)
        self.up_proj = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        return self.down_proj(F.silu(self.gate_proj(inputs)) * self.up_proj(inputs))

    def tensor_plan(self) -> dict[str, str]:
        return {"": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Block(nn.Module):
    """As in GPT-2, with a factor of its own for what it adds."""

    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), attention
        self.mlp_norm, self.mlp = nn.RMSNorm(WIDTH), mlp
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, inputs: Tensor) -> Any:
        inputs = inputs + self.attention(self.attention_norm(inputs))
        return inputs + self.scale * self.mlp(self.mlp_norm(inputs))


def gpt(attention: type[nn.Module] = Fused, tied: bool = False) -> nn.Sequential:
    """Tokens (N, T) to logits (N, T, ENTRIES), all styles but one."""
    head = Head(WIDTH, ENTRIES, bias=not tied)
    embedding = Embedding()
    if tied:
        head.weight = embedding.tokens.weight
    return nn.Sequential(
        OrderedDict(
            embedding=embedding,
            block1=Block(attention(), pair()),
            block2=Block(Grouped(), Gated()),
            norm=nn.LayerNorm(WIDTH),
            head=head,
        )
    )


def mlp(inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(8, 32), nn.ReLU(inplace), nn.Linear(32, 16), nn.ReLU(inplace)),
        nn.Linear(16, 10),
    )


def vit() -> nn.Module:
    """torchvision's, unchanged; 17 positions, which two ranks share unevenly."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(16, 4, 2, 4, 32, 64, num_classes=10)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, 0.0, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(stack, nn.Linear(WIDTH, 10))


class Conv1D(nn.Module):
    """As transformers has it: a Linear layer whose weight is (in, out)."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 4)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight + self.bias


class GPT2MLP(nn.Module):
    __module__ = "transformers.models.gpt2.modeling_gpt2"

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(WIDTH, 2 * WIDTH), Conv1D(2 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.c_proj(F.gelu(self.c_fc(inputs)))


class GPT2Attention(nn.Module):
    """As transformers has it: counts on heads and their width in a fused projection."""

    __module__ = "transformers.models.gpt2.modeling_gpt2"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.split_size = 4, WIDTH // 4, WIDTH
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        seen = attended(self.c_attn(inputs).split(self.split_size, dim=2), is_causal=True)
        assert seen.shape[2] == self.num_heads * self.head_dim
        return self.c_proj(seen)


class CausalSelfAttention(nn.Module):
    """Of nanoGPT: counts on the width of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head = 4
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        samples, length, width = inputs.shape
        seen = attended(self.c_attn(inputs).split(width, dim=2), is_causal=True)
        return self.c_proj(seen.reshape(samples, length, width))


class PhiAttention(nn.Module):
    """One's own, with fewer keys and values than queries."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = 4, 2, WIDTH // 4
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        widths = [number * self.head_dim for number in (self.heads, self.kv_heads, self.kv_heads)]
        return self.out(attended(self.qkv(inputs).split(widths, dim=2), enable_gqa=True))

    def tensor_plan(self) -> dict[str, str]:
        return {"": "heads", "qkv": "fused"}


class PhiMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Any:
        gate, up = self.gate_up(inputs).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def tensor_plan(self) -> dict[str, str]:
        return {"": "colwise", "gate_up": "fused"}


def fused() -> nn.Sequential:
    return nn.Sequential(
        Block(GPT2Attention(), pair()),
        Block(PhiAttention(), PhiMlp()),
        Block(CausalSelfAttention(), pair()),
        GPT2MLP(),
        nn.Linear(WIDTH, 10),
    )


NETWORKS = {"fused": fused, "gpt": gpt, "mlp": mlp, "vit": vit, "encoder": encoder}


def made(name: str, **options: Any) -> tuple[Task, Tensor, Tensor]:
    """A task, inputs of 8 samples, and targets: the same each time."""
    torch.manual_seed(1)
    task = Task(NETWORKS[name](**options))
    if name == "gpt":
        return task, torch.randint(ENTRIES, (8, LENGTH)), torch.randint(10, (8, LENGTH))
    shape = {"mlp": (8, 8), "vit": (8, 3, 16, 16)}.get(name, (8, LENGTH, WIDTH))
    targets = (8,) if name in ("mlp", "vit") else (8, LENGTH)
    return task, torch.randn(shape).double(), torch.randint(10, targets)


def task_of(name: str, **options: Any) -> Task:
    return made(name, **options)[0]


def batches(name: str) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*made(name)[1:]), 4)
