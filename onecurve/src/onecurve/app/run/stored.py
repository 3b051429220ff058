"""A configuration as it is stored: what is read from the environment stays ``${oc.env:NAME}``.

Other interpolations are resolved, because a resumed run compares settings.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from .interpolation import resolved

STORED, TEXTS = "stored_config", "stored_texts"
"""Keys of a rank's configuration: what is stored of it, and texts by the values they stand for."""
SECRET = re.compile(
    r"(passw(or)?d|passphrase|secret|credentials?|token|"
    r"(^|\.|(access|account|api|auth|encryption|license|private|secret)_?)key)$",
    re.IGNORECASE,
)
OF_A_TEXT = re.compile(r"(bos|cls|end|eos|mask|pad|sep|start|stop|unk)_token$", re.IGNORECASE)
# Shorter values are looked for only as the full text: they may be part of any word.
SHORTEST_PART = 8


def for_ranks(config: DictConfig) -> dict[str, Any]:
    """A configuration in plain containers, resolved, with what is stored of it."""
    raw: Any = OmegaConf.to_container(config)
    plain = resolved(config)
    texts = {str(value): text for text, value in _leaves(raw, plain) if "oc.env" in text}
    return {**plain, STORED: _without(texts, raw, plain), TEXTS: texts}


def hyperparameters(content: Any, texts: Mapping[str, str]) -> Any:
    """The arguments that a class has saved, as they are stored.

    In plain containers, as a checkpoint needs them, where Hydra passed its own.
    """
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
    keys = [key for key, _, value in pairs if "${" not in value and is_secret(key, value)]
    if not keys:
        return None
    instead = " ".join(f"'{key}=${{oc.env:NAME}}'" for key in keys)
    return (
        f"{', '.join(keys)}: is stored in the run's files as it was typed; a secret is read from "
        f"the environment: {instead}"
    )


def is_secret(key: str, value: str) -> bool:
    """Whether a key is named like a secret, such as "data.api_key", and its value may be one."""
    if value in ("", "null", "true", "false") or OF_A_TEXT.search(key):
        return False
    is_number = value.isdecimal() and key.lower().endswith(("key", "token"))
    return SECRET.search(key) is not None and not is_number


def _without(texts: Mapping[str, str], raw: Any, plain: Any) -> Any:
    """The resolved values, but the raw text of those that hold a value of the environment."""
    if isinstance(raw, dict):
        return {key: _without(texts, raw[key], plain[key]) for key in raw}
    if isinstance(raw, list):
        return [_without(texts, *pair) for pair in zip(raw, plain, strict=True)]
    is_read = isinstance(raw, str) and "${" in raw and any(_holds(plain, each) for each in texts)
    return raw if is_read else plain


def _holds(value: Any, part: str) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(_holds(each, part) for each in value)
    return str(value) == part or (len(part) >= SHORTEST_PART and part in str(value))


def _leaves(raw: Any, plain: Any) -> Iterator[tuple[str, Any]]:
    """Every raw text with its resolved value."""
    if isinstance(raw, dict | list):
        for key in raw if isinstance(raw, dict) else range(len(raw)):
            yield from _leaves(raw[key], plain[key])
    elif isinstance(raw, str):
        yield raw, plain
