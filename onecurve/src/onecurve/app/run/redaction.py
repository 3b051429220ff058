"""Keeps secrets and values of environment variables out of everything that a run writes.

A value from `${oc.env:NAME}` is stored as that text. A value whose key is named like a secret is
stored as ``***``, wherever it comes from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

MASK = "***"
REPLACEMENTS = "stored_as"
"""The key of a rank's configuration with what is stored instead of a value: a text by key."""
SECRETS = {"password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey"}
# `key` and `token` have other meanings, too: the word before them tells.
BEFORE_KEY = {"", "access", "account", "api", "auth", "encryption", "license", "private", "secret"}
BEFORE_OTHER_TOKEN = {"bos", "cls", "end", "eos", "mask", "pad", "sep", "start", "stop", "unk"}
# Shorter secrets are redacted only where they are the full text: they may be part of any word.
SHORTEST_PART = 8


def is_secret(key: str, value: Any) -> bool:
    """Whether a key is named like a secret, such as "data.api_key", and its value may be one."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value in ("", MASK):
        return False
    words = re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", key.rpartition(".")[2]).lower())
    *before, last = ["", *words]
    if last in SECRETS or isinstance(value, int):
        return last in SECRETS
    if last == "key":
        return before[-1] in BEFORE_KEY
    return last == "token" and before[-1] not in BEFORE_OTHER_TOKEN


def replacements(config: DictConfig) -> dict[str, str]:
    """The texts that are stored instead of secrets and environment variables, by key.

    In the configuration that Hydra composed no interpolation is resolved yet.
    """
    found: dict[str, str] = {}
    with _environment_reads() as variables:
        for key, value, text in _leaves(config, OmegaConf.to_container(config)):
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
            if variables:
                found[key] = text
            elif is_secret(key, value):
                found[key] = MASK
            variables.clear()
    return found


def redacted(config: dict[str, Any]) -> dict[str, Any]:
    """A rank's configuration as it is stored."""
    instead = config.get(REPLACEMENTS) or {}

    def at(key: str, value: Any) -> Any:
        if key in instead:
            return instead[key]
        if isinstance(value, dict):
            return {name: at(f"{key}.{name}".lstrip("."), each) for name, each in value.items()}
        if isinstance(value, list):
            return [at(f"{key}[{place}]", each) for place, each in enumerate(value)]
        return value

    plain = {name: each for name, each in config.items() if name != REPLACEMENTS}
    return dict(redact(at("", plain), secrets(config))) if instead else plain


def secrets(config: dict[str, Any]) -> set[str]:
    """The secrets in a rank's configuration."""
    return {value for _, value, text in _replaced(config) if text == MASK}


def redact(content: Any, secrets: set[str]) -> Any:
    """Plain containers without secrets, also where they are part of a longer text."""
    if not secrets:
        return content
    if isinstance(content, dict):
        return {key: redact(value, secrets) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(redact(value, secrets) for value in content)
    if str(content) in secrets and not isinstance(content, bool):
        return MASK
    if isinstance(content, str):
        for secret in secrets:
            content = content.replace(secret, MASK) if len(secret) >= SHORTEST_PART else content
    return content


def redact_hyperparameters(content: Any, config: dict[str, Any]) -> Any:
    """The arguments that a class has saved, redacted as in the configuration that they come from.

    In plain containers, as a checkpoint needs them, where Hydra passed its own.
    """
    instead = {(name, value): text for name, value, text in _replaced(config)}

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: of(str(key), each) for key, each in value.items()}
        if isinstance(value, ListConfig | list):
            return [of(name, each) for each in value]
        return instead.get((name, value), value) if isinstance(value, str) else value

    return redact(of("", content), secrets(config))


def overrides_of(words: ListConfig | list[str]) -> list[str]:
    """Hydra's overrides as they were typed: iterating over them would resolve interpolations."""
    plain: list[str] = OmegaConf.to_container(OmegaConf.create(words))  # type: ignore[assignment]
    return [str(word) for word in plain]


def redact_command(words: Sequence[str]) -> list[str]:
    """A command line without its secrets."""
    return [
        f"{key}={MASK}" if equals and is_secret(key.lstrip("+"), value) else word
        for word in words
        for key, equals, value in [word.partition("=")]
    ]


def redact_files(files: Sequence[Path], secrets: set[str]) -> None:
    """Rewrite YAML files without secrets."""
    for file in files:
        content = yaml.safe_load(file.read_text()) if secrets and file.is_file() else None
        hidden = redact(content, secrets)
        if hidden != content:
            file.write_text(yaml.safe_dump(hidden, sort_keys=False, allow_unicode=True))


def _replaced(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """For each replacement the last part of its key, the value, and the replacement."""
    instead = config.get(REPLACEMENTS)
    if not instead:
        return []
    tree = OmegaConf.create(config)
    found = [(key, OmegaConf.select(tree, key), text) for key, text in instead.items()]
    return [
        (key.rpartition(".")[2], str(value), text)
        for key, value, text in found
        if isinstance(value, str | int)
    ]


def _leaves(node: Any, raw: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """The key, the value, and the value before interpolation of everything that is no container."""
    for name, text in enumerate(raw) if isinstance(raw, list) else raw.items():
        key = f"{prefix}[{name}]" if isinstance(raw, list) else f"{prefix}.{name}".lstrip(".")
        if isinstance(text, dict | list):
            yield from _leaves(node[name], text, key)
        elif not OmegaConf.is_missing(node, name):
            yield key, node[name], str(text)


@contextmanager
def _environment_reads() -> Iterator[list[str]]:
    """Every environment variable that a configuration reads meanwhile is added to the list."""
    variables: list[str] = []

    def env(*arguments: Any) -> Any:
        variables.append(str(arguments[0]))
        return oc.env(*arguments)

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield variables
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
