"""Models of transformers: pretrained ones by name, and small ones with random weights.

Which head they get follows from the data: with `labels` one that classifies, without one that
predicts the next token.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from onecurve.errors import UserError, in_short
from pydantic import Field
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


def pretrained(
    name: str,
    *,
    labels: Sequence[str] | None = None,
    dtype: Dtype | Literal["auto"] = "float32",
    gradient_checkpointing: bool = False,
    lora: Annotated[int, Field(ge=1)] | None = None,
    lora_targets: Sequence[str] | str | None = None,
) -> nn.Module:
    """A model with pretrained weights.

    Args:
        name: Its name on the Hugging Face hub, or a folder that `save_pretrained` wrote.
        labels: Names of the classes; None for a model that predicts the next token.
        dtype: Data type of the weights; "auto" takes that of the file.
        gradient_checkpointing: Compute each block's activations again in the backward pass, which
            takes time and saves memory.
        lora: Train low-rank matrices of this rank beside the frozen weights (Hu et al., 2021); None
            trains all weights.
        lora_targets: Names of the layers that have them, or a text that peft knows, such as
            "all-linear"; None for peft's default of the family.

    Raises:
        UserError: If there is no such model, or peft is not installed.
    """
    auto = AutoModelForCausalLM if labels is None else AutoModelForSequenceClassification
    try:
        model = auto.from_pretrained(name, dtype=dtype, **_classes(labels))
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.name={name}: cannot be loaded ({in_short(error)}); give a folder that "
            "save_pretrained wrote, or a name on the Hugging Face hub, or, without a network, use "
            f"model={'llama_tiny' if labels is None else 'bert_tiny'}"
        ) from None
    for adapter in getattr(model, "peft_config", {}).values():
        raise UserError(
            f"model.name={name}: is an adapter; use the model that it is for, "
            f"model.name={adapter.base_model_name_or_path} model.lora={adapter.r}, and, to train "
            "the adapter further, init=runs/.../checkpoints/best.ckpt of its run"
        )
    network = _prepared(model, labels is None, gradient_checkpointing)
    if lora is None:
        return network
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError:
        raise UserError(
            f"model.lora={lora}: needs peft; type `uv pip install -e '.[peft]'`, or use "
            "model.lora=null"
        ) from None
    kind = TaskType.CAUSAL_LM if labels is None else TaskType.SEQ_CLS
    # A list of Hydra's could not be written to adapter_config.json.
    targets = lora_targets if isinstance(lora_targets, str | None) else [*lora_targets]
    adapter = LoraConfig(task_type=kind, r=lora, lora_alpha=2 * lora, target_modules=targets)
    adapted: nn.Module = get_peft_model(network, adapter)
    return adapted


def from_config(
    family: str,
    *,
    config: Mapping[str, Any],
    labels: Sequence[str] | None = None,
    dtype: Dtype = "float32",
    gradient_checkpointing: bool = False,
) -> nn.Module:
    """A model with random weights, for which nothing is downloaded.

    Args:
        family: A `model_type` of transformers, such as "llama".
        config: Its sizes, as its configuration class names them.
        labels: As for `pretrained`.
        dtype: As for `pretrained`, but not "auto".
        gradient_checkpointing: As for `pretrained`.
    """
    described = AutoConfig.for_model(family, **config, **_classes(labels))
    auto = AutoModelForCausalLM if labels is None else AutoModelForSequenceClassification
    model = auto.from_config(described, dtype=getattr(torch, dtype))
    return _prepared(model, labels is None, gradient_checkpointing)


def causal_lm_loss(logits: Tensor, labels: Tensor, ignore_index: int = -100, **_: Any) -> Tensor:
    """The mean cross entropy of the token after each position.

    The loss of transformers computes in float32 even if everything else is in float64:
    `onecurve parity` would report differences that are only rounding.

    Args:
        logits: (N, T, V).
        labels: The tokens themselves (N, T).
        ignore_index: A label that does not count, such as padding's.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    following = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=ignore_index)


def _prepared(model: Any, predicts_next: bool, gradient_checkpointing: bool) -> nn.Module:
    config = model.config
    # Made to fill gaps in a text, as BERT, which transformers lets predict as well.
    if predicts_next and type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_decoder:
        raise UserError(
            f"model: {config.model_type} sees the tokens that it is to predict; use another, "
            "such as model=llama_tiny, or experiment=snippets, which classifies"
        )
    # What was loaded is in evaluation mode, in which a Trainer leaves it: without dropout.
    model.train()
    # What attention would keep for the next token of a text is of no use in training.
    model.config.use_cache = False
    if predicts_next:
        model.loss_function = causal_lm_loss
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    network: nn.Module = model
    return network


def _classes(labels: Sequence[str] | None) -> dict[str, Any]:
    """Return the names of the classes as arguments of a configuration, which counts them."""
    if labels is None:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }
