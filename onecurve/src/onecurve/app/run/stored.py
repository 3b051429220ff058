"""A configuration as it is stored: what is read from the environment stays ``${oc.env:NAME}``.

Other interpolations are resolved, because a resumed run compares settings.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from .interpolation import resolved

STORED, TEXTS = "stored_config", "stored_texts"
"""Keys of a rank's configuration: what is stored of it, and texts by the values they stand for."""
SECRET = re.compile(
    r"(password|passphrase|secret|credentials?|((^|\.)|(access|account|api|auth|private)_?)key|"
    r"(?<!bos_)(?<!cls_)(?<!eos_)(?<!mask_)(?<!pad_)(?<!sep_)(?<!unk_)token)$",
    re.IGNORECASE,
)
# Shorter values are looked for only as the full text: they may be part of any word.
SHORTEST_PART = 8


def for_ranks(config: DictConfig) -> dict[str, Any]:
    """A configuration in plain containers, resolved, with what is stored of it."""
    raw: Any = OmegaConf.to_container(config)
    plain = resolved(config)
    texts: dict[str, str] = {}

    def note(text: Any, value: Any) -> None:
        if isinstance(text, str) and "oc.env" in text:
            texts[str(value)] = text

    def without(text: Any, value: Any) -> Any:
        """The resolved value, but the raw text of one that holds a value of the environment."""
        is_read = isinstance(text, str) and "${" in text and any(_holds(value, v) for v in texts)
        return text if is_read else value

    _of_leaves(note, raw, plain)
    return {**plain, STORED: _of_leaves(without, raw, plain), TEXTS: texts}


def _of_leaves(function: Callable[[Any, Any], Any], raw: Any, plain: Any) -> Any:
    """The containers with what a function makes of every raw value and the resolved one."""
    if isinstance(raw, dict):
        return {key: _of_leaves(function, raw[key], plain[key]) for key in raw}
    if isinstance(raw, list):
        return [_of_leaves(function, *pair) for pair in zip(raw, plain, strict=True)]
    return function(raw, plain)


def hyperparameters(content: Any, texts: Mapping[str, str]) -> Any:
    """The arguments that a class has saved, as they are stored: in plain containers."""
    if isinstance(content, Mapping):
        return {key: hyperparameters(value, texts) for key, value in content.items()}
    if isinstance(content, ListConfig | list):
        return [hyperparameters(value, texts) for value in content]
    if isinstance(content, str):
        for value, text in texts.items():
            if _holds(content, value):
                content = content.replace(value, text)
    return content


def overrides_of(words: ListConfig | list[str]) -> list[str]:
    """Hydra's overrides as they were typed: iterating over them would resolve interpolations."""
    plain: list[str] = OmegaConf.to_container(OmegaConf.create(words))  # type: ignore[assignment]
    return [str(word) for word in plain]


def typed_secrets(overrides: list[str]) -> str | None:
    """The line about secrets that were typed, and are stored as they are; None without one."""
    pairs = [word.lstrip("+").partition("=") for word in overrides]
    typed = [key for key, _, value in pairs if value not in ("", "null") and "${" not in value]
    keys = [key for key in typed if SECRET.search(key)]
    if not keys:
        return None
    instead = " ".join(f"'{key}=${{oc.env:NAME}}'" for key in keys)
    return (
        f"{', '.join(keys)}: is stored in the run's files as it was typed; a secret is read from "
        f"the environment: {instead}"
    )


def _holds(value: Any, part: str) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(_holds(each, part) for each in value)
    return str(value) == part or (len(part) >= SHORTEST_PART and part in str(value))
