"""What of a configuration is used and not stored: secrets, and what comes from the environment.

A value that `${oc.env:NAME}` gives is stored as that text. One whose key is named like a secret is
stored as ``***``, wherever it comes from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

MASK = "***"
STORED_AS = "stored_as"
"""Where a rank's configuration has what is stored instead: a text by key."""
SECRETS = {"password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey"}
# `key` and `token` are names of many other things.
OF_KEYS = {"", "access", "account", "api", "auth", "encryption", "license", "private", "secret"}
NOT_OF_TOKENS = {"bos", "cls", "end", "eos", "mask", "pad", "sep", "start", "stop", "unk"}
# A shorter one is looked for as a whole: it may be a part of anything.
SHORTEST_PART = 8


def is_secret(key: str, value: Any) -> bool:
    """Whether a key is named like a secret, such as "data.api_key", and has a value like one."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value in ("", MASK):
        return False
    words = re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", key.rpartition(".")[2]).lower())
    *before, last = ["", *words]
    if last in SECRETS or isinstance(value, int):
        return last in SECRETS
    if last == "key":
        return before[-1] in OF_KEYS
    return last == "token" and before[-1] not in NOT_OF_TOKENS


def stored_as(config: DictConfig) -> dict[str, str]:
    """What is stored instead of the values of some keys.

    Args:
        config: What Hydra composed, with nothing resolved yet.
    """
    found: dict[str, str] = {}
    with _environment_is_noticed() as noticed:
        for key, node, name in _leaves(config):
            noticed.clear()
            value = node[name]
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
            if noticed:
                found[key] = str(node._get_node(name)._value())
            elif is_secret(key, value):
                found[key] = MASK
    return found


def stored(config: dict[str, Any]) -> dict[str, Any]:
    """A rank's configuration as it is stored."""
    instead = config.get(STORED_AS) or {}

    def at(key: str, value: Any) -> Any:
        if key in instead:
            return instead[key]
        if isinstance(value, dict):
            return {name: at(f"{key}.{name}".lstrip("."), each) for name, each in value.items()}
        if isinstance(value, list):
            return [at(f"{key}[{place}]", each) for place, each in enumerate(value)]
        return value

    plain = {name: each for name, each in config.items() if name != STORED_AS}
    return dict(hide(at("", plain), secrets(config))) if instead else plain


def secrets(config: dict[str, Any]) -> set[str]:
    """The secrets in a rank's configuration."""
    return {value for _, value, text in _hidden(config) if text == MASK}


def hide(content: Any, those: set[str]) -> Any:
    """Plain containers without secrets, whether they are a text or a part of one."""
    if not those:
        return content
    if isinstance(content, dict):
        return {key: hide(value, those) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(hide(value, those) for value in content)
    if str(content) in those and not isinstance(content, bool):
        return MASK
    if isinstance(content, str):
        for secret in those:
            content = content.replace(secret, MASK) if len(secret) >= SHORTEST_PART else content
    return content


def hide_parameters(content: Any, config: dict[str, Any]) -> Any:
    """What a class keeps of its arguments, as the configuration that they are of is stored.

    In plain containers, whatever Hydra has passed to it: a checkpoint holds nothing else.
    """
    instead = {(name, value): text for name, value, text in _hidden(config)}

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: of(str(key), each) for key, each in value.items()}
        if isinstance(value, ListConfig | list):
            return [of(name, each) for each in value]
        return instead.get((name, value), value) if isinstance(value, str) else value

    return hide(of("", content), secrets(config))


def typed(words: ListConfig | list[str]) -> list[str]:
    """Overrides of Hydra's as they were typed: going through them would resolve references."""
    plain: list[str] = OmegaConf.to_container(OmegaConf.create(words))  # type: ignore[assignment]
    return [str(word) for word in plain]


def hide_in_words(words: Sequence[str]) -> list[str]:
    """A command line without the secrets that were typed."""
    return [
        f"{key}={MASK}" if equals and is_secret(key.lstrip("+"), value) else word
        for word in words
        for key, equals, value in [word.partition("=")]
    ]


def hide_in_files(files: Sequence[Path], those: set[str]) -> None:
    """Rewrite YAML files that hold secrets."""
    for file in files:
        content = yaml.safe_load(file.read_text()) if those and file.is_file() else None
        hidden = hide(content, those)
        if hidden != content:
            file.write_text(yaml.safe_dump(hidden, sort_keys=False, allow_unicode=True))


def _hidden(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Of all that is stored otherwise: the last part of its key, its value, what is stored."""
    instead = config.get(STORED_AS)
    if not instead:
        return []
    tree = OmegaConf.create(config)
    found = [(key, OmegaConf.select(tree, key), text) for key, text in instead.items()]
    return [
        (key.rpartition(".")[2], str(value), text)
        for key, value, text in found
        if isinstance(value, str | int)
    ]


def _leaves(node: Container, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every key that holds no container of its own, with where it stands."""
    is_list = isinstance(node, ListConfig)
    names: Any = range(len(node)) if isinstance(node, ListConfig) else list(node)
    for name in names:
        key = f"{prefix}[{name}]" if is_list else f"{prefix}.{name}".lstrip(".")
        each: Any = node._get_node(name)
        if isinstance(each, Container) and not each._is_interpolation() and not each._is_none():
            yield from _leaves(each, key)
        elif not OmegaConf.is_missing(node, name):
            yield key, node, name


@contextmanager
def _environment_is_noticed() -> Iterator[list[str]]:
    """The list grows by every variable that is read."""
    noticed: list[str] = []

    def env(*arguments: Any) -> Any:
        noticed.append(str(arguments[0]))
        return oc.env(*arguments)

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield noticed
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
