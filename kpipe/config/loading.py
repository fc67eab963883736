"""From presets, files, the environment and the command line to one configuration."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kpipe.assets import asset
from kpipe.config.models import Config, Section
from kpipe.errors import ConfigError

ENV_PREFIX = "KPIPE_"
DEFAULT_PRESET = "embedded"
_PRIVATE = ("coder.base_url", "coder.api_key_env", "policy.base_url", "policy.api_key_env")
"""Wrong values of these are not repeated in messages: people put keys there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The effective configuration, and for each key ``a.b`` where its value came from."""

    config: Config
    origin: dict[str, str]

    def asked_for(self, key: str) -> bool:
        """True when somebody named this value: not a default, nor a preset that nobody chose."""
        return not self.origin[key].startswith("default") and not self.origin[key].endswith("(default)")


def load(
    *,
    preset: str | None = None,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge all sources. `overrides` are ``a.b=value`` texts; `preset` wins over one named in the file.

    Raises ConfigError.
    """
    from_file = _read_toml(file) if file else {}
    in_file = from_file.pop("preset", None)
    named = in_file if preset is None else preset
    chosen = DEFAULT_PRESET if named is None else str(named)
    place = f"preset {chosen}" + (" (default)" if named is None else "")
    layers: list[tuple[str, dict[str, Any]]] = [(place, read_preset(chosen))]
    if file:
        layers.append((str(file), from_file))
    env = os.environ if environ is None else environ
    layers += [(f"environment variable {name}", tree) for name, tree in _from_environment(env)]
    layers += [("--set", _parse_override(text)) for text in overrides]
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source, tree in layers:
        for key, value in _flatten(tree):
            _check_key(key, source)
            _put(merged, key, value)
            origin[key] = source
    config = _validate(merged, origin)
    return Loaded(config, {key: origin.get(key, "default") for key in keys()})


def from_json(tree: Mapping[str, Any]) -> Config:
    """The configuration that a run stored. Raises ConfigError when this version cannot read it."""
    return _validate(dict(tree), dict.fromkeys(keys(), "the stored run"))


def presets() -> list[str]:
    return sorted(p.stem for p in asset("presets").glob("*.toml"))


def read_preset(name: str) -> dict[str, Any]:
    """A preset, with the one that it `extends` underneath. Raises ConfigError for an unknown name."""
    if name not in presets():
        raise ConfigError(
            f"There is no preset {name!r}{_near(name, presets())}", f"Presets: {', '.join(presets())}."
        )
    tree = _read_toml(asset(f"presets/{name}.toml"))
    if parent := tree.pop("extends", None):
        base = read_preset(str(parent))
        for key, value in _flatten(tree):
            _put(base, key, value)
        return base
    return tree


def keys() -> list[str]:
    """Every valid key, as ``section.name``."""
    return [key for key, _ in fields()]


def fields() -> Iterator[tuple[str, Any]]:
    """Every valid key with its pydantic FieldInfo (type, default, description)."""
    for name, info in Config.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from ((f"{name}.{inner}", f) for inner, f in info.annotation.model_fields.items())
        else:
            yield name, info


def value_of(config: Config, key: str) -> Any:
    """Value at ``a.b``."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"There is no configuration file {path}.", "Check the path given to --config."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", "Fix that line.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions."
        ) from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """KPIPE_SECTION__KEY; names without a double underscore belong to other uses (KPIPE_DB)."""
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield name, _nested(key, _literal(text))


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {key} is not of the form key=value.", "For example: --set train.learning_rate=1e-5."
        )
    return _nested(key.strip(), _literal(value.strip()))


def _literal(text: str) -> Any:
    """A TOML value where the text is one, else the text itself, so that quotes may be left out."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(key: str, value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    _put(tree, key, value)
    return tree


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and (value or (not prefix and name in Config.model_fields)):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _tuples(value: Any) -> Any:
    """TOML and JSON know lists only."""
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def _check_key(key: str, source: str) -> None:
    if key not in keys():
        raise ConfigError(
            f"Unknown configuration key {key} ({source}){_near(key, keys())}",
            "`kpipe config show` lists every key.",
        )


def _near(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a wrong name, with the nearest right one."""
    by_tail = [k for k in known if k.split(".")[-1] == name.split(".")[-1]]
    close = difflib.get_close_matches(name, by_tail or known, n=1, cutoff=0.0 if by_tail else 0.5)
    return f". Did you mean {close[0]}?" if close else "."


def _validate(tree: dict[str, Any], origin: Mapping[str, str]) -> Config:
    try:
        config = Config.model_validate(_tuples(tree))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = next((k for k in keys() if key == k or key.startswith(f"{k}.")), key)
        source = origin.get(known, origin.get(key, "configuration"))
        message = first["msg"].removeprefix("Value error, ").replace("valid tuple", "list: [1, 2]")
        shown = "" if known in _PRIVATE else f" = {first['input']!r}"
        raise ConfigError(
            f"{known}{shown} ({source}): {message[0].lower()}{message[1:]}.",
            "`kpipe config show` gives every key and its type.",
        ) from None
    _check_batch(config, origin)
    _check_prompt(config, origin)
    _check_update(config, origin)
    return config


def _check_batch(config: Config, origin: Mapping[str, str]) -> None:
    batch = config.collect.group_size * config.collect.groups_per_step
    if config.train.batch_size != batch:
        source = origin.get("train.batch_size", "default")
        raise ConfigError(
            f"train.batch_size = {config.train.batch_size} ({source}), but "
            f"collect.groups_per_step x collect.group_size = {batch}.",
            f"Set train.batch_size={batch}, or change the other two.",
        )


def _check_prompt(config: Config, origin: Mapping[str, str]) -> None:
    name, known = config.policy.prompt, sorted(p.stem for p in asset("prompts").glob("*.txt"))
    if name not in known:
        source = origin.get("policy.prompt", "default")
        raise ConfigError(
            f"policy.prompt = {name!r} ({source}): there is no such template{_near(name, known)}",
            f"Templates: {', '.join(known)}.",
        )


def _check_update(config: Config, origin: Mapping[str, str]) -> None:
    cfg = config.train
    if cfg.policy_loss == "dppo_tv" and cfg.proximal != "behaviour":
        source = origin.get("train.proximal", "default")
        raise ConfigError(
            f"train.policy_loss = dppo_tv bounds the distance from the policy that sampled,"
            f" but train.proximal = {cfg.proximal} ({source}).",
            "Set train.proximal=behaviour.",
        )
    if cfg.correction_floor is not None and cfg.correction_floor > cfg.correction_cap:
        source = origin.get("train.correction_floor", "default")
        raise ConfigError(
            f"train.correction_floor = {cfg.correction_floor} ({source}) is above"
            f" train.correction_cap = {cfg.correction_cap}.",
            "Set a floor below the cap, for example 0.5 and 5.",
        )
