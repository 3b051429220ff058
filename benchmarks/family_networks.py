"""Networks for `families.py`, tiny and random, and tasks as strangers write them around one."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import timm
import torch
import torchvision
import transformers
from lightning.pytorch import LightningModule
from sequences import Mean
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLES = 21
LENGTH, TOKENS, CLASSES, PIXELS = 10, 48, 5, 16
WIDTH, DEPTH, HEADS = 16, 4, 4


class Trained(LightningModule):
    """A task around a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss_of(batch)
        self.log("train", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss_of(batch), on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD, which keeps a small difference small."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class OfTransformers(Trained):
    """Takes the loss that its network makes."""

    def loss_of(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def weight(self, batch: dict[str, Tensor]) -> Tensor:
        """What that loss is a mean over; the first label of a next token is none."""
        first = type(self.model).__name__.endswith(("CausalLM", "LMHeadModel"))
        return (batch["labels"][..., int(first) :] != -100).sum()


class Classifies(Trained):
    """Has a loss of its own."""

    def loss_of(self, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch["inputs"]), batch["labels"])


class OfLayers(Classifies):
    """As the library's own tasks are: any schedule can take its loss."""

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)

    def prepare(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What enters the layers, and what the loss compares."""
        return batch["inputs"], batch["labels"]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)


class Encoder(nn.Module):
    """torch.nn's encoder with an embedding, and a head for the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.encoder = nn.TransformerEncoder(encoder_layer(), DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        is_padding = inputs == 0
        hidden = self.encoder(self.embed(inputs), src_key_padding_mask=is_padding)
        kept = hidden.masked_fill(is_padding[..., None], 0).sum(1) / (~is_padding).sum(1, True)
        logits: Tensor = self.head(kept)
        return logits


class Translator(nn.Module):
    """torch.nn's encoder and decoder: the one's outputs are memory for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, DEPTH, DEPTH, 2 * WIDTH, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embed(inputs)
        logits: Tensor = self.head(self.transformer(hidden, hidden[:, :4]).mean(1))
        return logits


def encoder_layer() -> nn.TransformerEncoderLayer:
    """Of torch.nn, as small as the other networks' layers."""
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)


def of_torch() -> nn.Sequential:
    """A network that is one sequence of layers."""
    layers = [encoder_layer() for _ in range(DEPTH)]
    head = [nn.LayerNorm(WIDTH), Mean(), nn.Linear(WIDTH, CLASSES)]
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *layers, *head)


def of_transformers(
    name: str, checkpointing: bool = False, untied: bool = False, **settings: Any
) -> nn.Module:
    """A network by the name of its class, from a small configuration.

    Args:
        name: Of the class in transformers.
        checkpointing: Whether layers are computed again in the backward pass.
        untied: Whether a head that is one with the embedding gets a weight of its own.
        settings: Of its configuration, where they are not the usual ones.
    """
    kind = getattr(transformers, name)
    made: nn.Module = kind(kind.config_class(**{**USUAL, **settings}))
    if untied:
        made.lm_head.weight = nn.Parameter(made.lm_head.weight.detach().clone())
    if checkpointing:
        made.gradient_checkpointing_enable()  # type: ignore[operator]
    return made


def texts(labels: str = "ids", padded: bool = False) -> list[dict[str, Tensor]]:
    """Token ids, labels for each ("ids"), for some ("some") or for all together ("class")."""
    draws = torch.Generator().manual_seed(0)
    at = torch.arange(LENGTH)
    samples = []
    for number in range(SAMPLES):
        ids = torch.randint(3, TOKENS, (LENGTH,), generator=draws)
        is_text = at < (4 + 3 * number % 7 if padded else LENGTH)
        ids = ids.where(is_text, 0)
        counted = is_text & ((at + number) % 3 == 0) if labels == "some" else is_text
        sample = {"input_ids": ids, "labels": ids.where(counted, -100)}
        if labels == "class":
            sample["labels"] = ids.sum() % CLASSES
        if padded:
            sample["attention_mask"] = is_text.long()
        samples.append(sample)
    return samples


def token_rows(padded: bool = False) -> list[dict[str, Tensor]]:
    """Token ids for networks that take nothing else."""
    samples = texts("class", padded)
    return [{"inputs": each["input_ids"], "labels": each["labels"]} for each in samples]


def images(name: str = "inputs", pixels: int = PIXELS) -> list[dict[str, Tensor]]:
    """Images with a label, under a name."""
    draws = torch.Generator().manual_seed(0)
    return [
        {
            name: torch.randn(3, pixels, pixels, generator=draws, dtype=torch.float64),
            "labels": torch.randint(CLASSES, (), generator=draws),
        }
        for _ in range(SAMPLES)
    ]


class Row(NamedTuple):
    """A network and what it is trained on."""

    network: Callable[[], nn.Module]
    samples: Callable[[], list[dict[str, Tensor]]]
    task: Callable[[nn.Module], Trained] = OfTransformers

    @property
    def is_sequence(self) -> bool:
        """Whether any schedule can take its layers and its loss."""
        return self.task is OfLayers


def row(name: str, labels: str = "ids", padded: bool = False, **settings: Any) -> Row:
    """Of a network of transformers that is trained on texts; see `of_transformers` and `texts`."""
    network = partial(of_transformers, name, **settings)
    return Row(network, partial(texts, labels, padded))


def of_images(network: Callable[..., nn.Module], pixels: int = PIXELS, **settings: Any) -> Row:
    """Of a network of torchvision or timm, whose blocks run by gpipe."""
    return Row(partial(network, **settings), partial(images, pixels=pixels), Classifies)


SMALL = {"vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": DEPTH}
SMALL |= {"num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH}
TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NO_DROPOUT = dict.fromkeys(
    ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0
)
# What configurations of most networks call these; each takes the names that it knows.
USUAL = {**SMALL, **TOKEN_IDS, **NO_DROPOUT, "max_position_embeddings": 16}
LLAMA = partial(row, "LlamaForCausalLM", num_key_value_heads=2)
GROUPED = partial(row, padded=True, num_key_value_heads=2)
CLASSIFIER = partial(row, labels="class", padded=True, num_labels=CLASSES)
GPT2 = partial(row, "GPT2LMHeadModel", n_inner=2 * WIDTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
OF_T5 = {"d_model": WIDTH, "d_kv": 4, "d_ff": 2 * WIDTH, "num_layers": DEPTH, "num_heads": HEADS}
OF_T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
T5 = partial(row, "T5ForConditionalGeneration", **OF_T5)
OF_BART = {"layers": DEPTH, "attention_heads": HEADS, "ffn_dim": 2 * WIDTH}
BART = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in OF_BART.items()}
BART |= {"d_model": WIDTH, "dropout": 0.0, "decoder_start_token_id": 2}
VIT = {"patch_size": 4, "num_heads": HEADS, "num_classes": CLASSES}
OF_TORCHVISION = {"image_size": PIXELS, "num_layers": DEPTH, "hidden_dim": WIDTH}
OF_TIMM = {"img_size": PIXELS, "depth": DEPTH, "embed_dim": WIDTH}
SWIN = {"patch_size": [2, 2], "window_size": [2, 2], "stochastic_depth_prob": 0.0}
SWIN |= {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "num_classes": CLASSES}
CONVNEXT = {"depths": (1, 1, 2, 1), "dims": (4, 8, 8, 8), "num_classes": CLASSES}

VIT_OF_TRANSFORMERS = {"image_size": PIXELS, "patch_size": 4, "num_labels": CLASSES}

# Padded or not, of tied or untied heads, some with gradient checkpointing.
AGAIN = "padded, gradient checkpointing"
ROWS = {
    "Llama": LLAMA(),
    "Llama, tied, padded": LLAMA(padded=True, tie_word_embeddings=True),
    f"Llama, {AGAIN}": LLAMA(padded=True, checkpointing=True),
    "Mistral, padded": GROUPED("MistralForCausalLM", sliding_window=4),
    "Qwen2, tied, padded": GROUPED("Qwen2ForCausalLM", tie_word_embeddings=True),
    "GPT-2": GPT2(),
    f"GPT-2, {AGAIN}": GPT2(padded=True, checkpointing=True),
    "GPT-2, untied, padded": GPT2(padded=True, untied=True),
    "BERT, masked tokens, padded": row("BertForMaskedLM", "some", padded=True),
    f"BERT, classes, {AGAIN}": CLASSIFIER("BertForSequenceClassification", checkpointing=True),
    "RoBERTa, classes, padded": CLASSIFIER("RobertaForSequenceClassification"),
    "RoBERTa, masked tokens": row("RobertaForMaskedLM", "some"),
    "T5": T5(),
    "T5 1.1, untied, padded": T5(padded=True, untied=True, feed_forward_proj="gated-gelu"),
    f"T5, {AGAIN}": T5(padded=True, checkpointing=True),
    "BART, padded": row("BartForConditionalGeneration", padded=True, **BART),
    "ViT (transformers)": Row(
        partial(of_transformers, "ViTForImageClassification", **VIT_OF_TRANSFORMERS),
        partial(images, "pixel_values"),
    ),
    "nn.TransformerEncoderLayer in an nn.Sequential": Row(of_torch, token_rows, OfLayers),
    "nn.TransformerEncoder, padded": Row(Encoder, partial(token_rows, padded=True), Classifies),
    "nn.Transformer": Row(Translator, token_rows, Classifies),
    "ViT (torchvision)": of_images(
        torchvision.models.VisionTransformer, **VIT, **OF_TORCHVISION, mlp_dim=2 * WIDTH
    ),
    "Swin (torchvision)": of_images(torchvision.models.SwinTransformer, **SWIN),
    "ViT (timm)": of_images(timm.models.VisionTransformer, **VIT, **OF_TIMM),
    "ConvNeXt (timm)": of_images(timm.models.ConvNeXt, 2 * PIXELS, **CONVNEXT),
}
