"""One frozen model per stage; values from defaults, a preset, a TOML file, the environment and --set.

Later sources win: default < preset < file < environment (KPIPE_TRAIN__LEARNING_RATE=1e-5) < --set
(train.learning_rate=1e-5). An unknown key or a wrong type is a ConfigError that names the key, the
nearest valid one and the place it came from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kpipe.assets import asset
from kpipe.errors import ConfigError

ENV_PREFIX = "KPIPE_"
DEFAULT_DB = "sqlite:///kpipe.db"
DEFAULT_PRESET = "embedded"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProblemsConfig(_Section):
    """Which problems a run samples."""

    suite: str = Field("builtin", description="suite of problems: builtin, or the name given to `problems add`")
    split: Literal["train", "heldout", "all"] = Field("train", description="which split is sampled")
    levels: tuple[int, ...] = Field((), description="only these levels; empty means all")
    names: tuple[str, ...] = Field((), description="only these problems; empty means all")


class PolicyConfig(_Section):
    """Who suggests."""

    kind: Literal["tiny", "local"] = Field("tiny", description="tiny: built on the spot; local: a transformers model")
    model: str = Field("Qwen/Qwen2-0.5B-Instruct", description="directory or hub id, for kind = local")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="weights and arithmetic")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; the trainer applies it as well")
    max_new_tokens: int = Field(40, gt=0, description="length limit of a suggestion")
    max_prompt_tokens: int = Field(2048, gt=0, description="longer prompts end the trajectory as a fault")
    prompt: str = Field("compact", description="template in kpipe/prompts")
    batch_size: int = Field(64, gt=0, description="prompts sampled together")
    batch_wait_s: float = Field(0.05, ge=0, description="how long a prompt waits for others to join its batch")
    warmstart_steps: int = Field(300, gt=0, description="supervised steps that build the tiny policy")
    threads: int = Field(0, ge=0, description="CPU threads for sampling; 0 means all that the process may use")


class CoderConfig(_Section):
    """Who implements."""

    kind: Literal["builtin", "openai"] = Field("builtin", description="builtin: offline rules; openai: any compatible API")
    model: str = Field("gpt-4o", description="model name at the API")
    base_url: str = Field("", description="API base URL; empty means OpenAI's")
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    temperature: float = Field(0.0, ge=0, description="sampling temperature of the coder")
    max_tokens: int = Field(8192, gt=0, description="length limit of a reply")
    concurrency: int = Field(16, gt=0, description="requests in flight")
    timeout_s: float = Field(180.0, gt=0, description="total deadline of one request, retries included")
    max_retries: int = Field(5, ge=0, description="retries on 408, 409, 429, 5xx, timeouts and cut connections")
    usd_per_million_in: float = Field(2.5, ge=0, description="price of prompt tokens, for the ledger")
    usd_per_million_out: float = Field(10.0, ge=0, description="price of reply tokens, for the ledger")


class CollectConfig(_Section):
    """How episodes are run."""

    group_size: int = Field(4, ge=1, description="trajectories of one problem that are compared with each other")
    groups_per_step: int = Field(4, ge=1, description="groups that make one update (batch_size = groups x group_size)")
    max_steps_per_episode: int = Field(4, ge=1, description="refinement turns of one trajectory")
    max_off_policy_steps: int = Field(1, ge=0, description="how many updates old a trained group may be")
    sampling: Literal["uniform", "round_robin"] = Field("round_robin", description="how problems are drawn")
    lease_s: float = Field(20.0, gt=0, description="a collector that is silent for so long loses its groups")


class EvaluateConfig(_Section):
    """How kernels are judged."""

    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    builders: int = Field(0, ge=0, description="builds at the same time; 0 means one per core that does not time")
    trials: int = Field(5, ge=1, description="correctness trials on fresh random inputs")
    atol: float = Field(1e-4, ge=0, description="absolute tolerance for float32; 1e-2 for half types")
    rtol: float = Field(1e-4, ge=0, description="relative tolerance for float32; 1e-2 for half types")
    build_timeout_s: float = Field(120.0, gt=0, description="limit of one build")
    run_timeout_s: float = Field(30.0, gt=0, description="limit of loading, checking and timing one kernel")
    memory_mb: int = Field(4096, gt=0, description="memory limit of one candidate")
    timing_budget_s: float = Field(0.6, gt=0, description="timing stops here at the latest")
    timing_precision: float = Field(0.02, gt=0, description="timing stops when the interval is this narrow")
    lease_s: float = Field(30.0, gt=0, description="a worker that is silent for so long loses its job")
    max_attempts: int = Field(3, ge=1, description="attempts before a job that keeps killing workers is failed")
    cache_dir: str = Field("", description="compiled kernels; empty means ~/.cache/kpipe")
    cache_mb: int = Field(2048, gt=0, description="size limit of the build cache")


class RewardConfig(_Section):
    """The seed's formula by default."""

    not_compiled: float = Field(-1.0, description="reward when the kernel does not build or load")
    incorrect: float = Field(-0.5, description="reward when it runs and is wrong")
    correct: float = Field(0.3, description="base reward of a correct kernel")
    unchanged: float = Field(0.0, description="reward when the code is that of the parent or the reference")
    speedup_weight: float = Field(1.0, description="weight of the speedup term")
    speedup_cap: float | None = Field(None, gt=0, description="speedups above count as this")
    speedup_floor: float | None = Field(None, gt=0, description="speedups below earn no bonus")
    use_lower_bound: bool = Field(False, description="use the lower bound of the interval in place of the median")
    transform: Literal["linear", "log"] = Field("linear", description="how the speedup enters")


class TrainConfig(_Section):
    """The update. Names are the seed's where it has them."""

    batch_size: int = Field(16, ge=1, description="trajectories of one update: groups_per_step x group_size")
    mini_batch_size: int = Field(4, ge=1, description="turns in one forward and backward pass")
    gradient_accumulation_steps: int = Field(2, ge=1, description="mini-batches in one optimizer step")
    ppo_epochs: int = Field(2, ge=1, description="passes over the batch")
    learning_rate: float = Field(1e-5, ge=0, description="AdamW step size; 0 is the control experiment")
    warmup_steps: int = Field(0, ge=0, description="updates over which the step size rises")
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping")
    gamma: float = Field(0.4, ge=0, le=1, description="discount over the turns of a trajectory")
    max_steps: int = Field(100, ge=1, description="updates of the run")
    advantage: Literal["grpo", "rloo", "max_rl"] = Field("grpo", description="baseline of the group")
    scale_rewards: Literal["none", "group", "batch"] = Field("none", description="division by a standard deviation")
    group_by: Literal["problem", "problem_turn"] = Field("problem_turn", description="what a sample is compared with")
    min_group_spread: float = Field(1e-6, ge=0, description="groups whose returns differ by no more are dropped")
    clip_low: float = Field(0.2, gt=0, lt=1, description="lower clip of the ratio")
    clip_high: float = Field(0.28, gt=0, description="upper clip of the ratio (clip-higher)")
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss of negative advantages")
    kl_beta: float = Field(0.001, ge=0, description="weight of the KL to the frozen reference; 0 skips it")
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    proximal: Literal["behaviour", "recompute"] = Field("behaviour", description="what the ratio is taken against")
    off_policy_correction: Literal["none", "token_truncate", "token_mask"] = "token_truncate"
    correction_cap: float = Field(2.0, gt=0, description="cap of the correction weight")
    loss_aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"] = "token_mean"
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    threads: int = Field(0, ge=0, description="CPU threads; 0 means all that the process may use")
    keep_last: int = Field(3, ge=1, description="checkpoints with optimizer state that are kept")


class Config(_Section):
    """A whole run."""

    seed: int = Field(0, ge=0, description="everything random starts here")
    output_dir: str = Field("kpipe-runs", description="where checkpoints lie")
    problems: ProblemsConfig = ProblemsConfig()
    policy: PolicyConfig = PolicyConfig()
    coder: CoderConfig = CoderConfig()
    collect: CollectConfig = CollectConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    reward: RewardConfig = RewardConfig()
    train: TrainConfig = TrainConfig()


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
    layers += [(f"--set {text}", _parse_override(text)) for text in overrides]
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
    return _validate(dict(tree), {key: "the stored run" for key in keys()})


def presets() -> list[str]:
    return sorted(p.stem for p in asset("presets").glob("*.toml"))


def read_preset(name: str) -> dict[str, Any]:
    """A preset, with the one that it `extends` underneath. Raises ConfigError for an unknown name."""
    if name not in presets():
        raise ConfigError(f"There is no preset {name!r}{_near(name, presets())}.", f"Presets: {', '.join(presets())}.")
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
        if isinstance(info.annotation, type) and issubclass(info.annotation, _Section):
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
        raise ConfigError(f"There is no configuration file {path}.", "Check the path given to --config.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", "Fix that line.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions.") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """KPIPE_SECTION__KEY; names without a double underscore belong to other uses (KPIPE_DB)."""
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield name, _nested(key, _literal(text))


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text} is not of the form key=value.", "For example: --set train.learning_rate=1e-5.")
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
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_key(key: str, source: str) -> None:
    if key not in keys():
        raise ConfigError(
            f"Unknown configuration key {key} ({source}){_near(key, keys())}.",
            "`kpipe config show` lists every key.",
        )


def _near(name: str, known: Sequence[str]) -> str:
    by_tail = [k for k in known if k.split(".")[-1] == name.split(".")[-1]]
    close = by_tail or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _validate(tree: dict[str, Any], origin: Mapping[str, str]) -> Config:
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = next((k for k in keys() if key == k or key.startswith(f"{k}.")), key)
        source = origin.get(known, origin.get(key, "configuration"))
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigError(
            f"{known} = {first['input']!r} ({source}): {reason}.", "`kpipe config show` gives every key and its type."
        ) from None
    batch = config.collect.group_size * config.collect.groups_per_step
    if config.train.batch_size != batch:
        raise ConfigError(
            f"train.batch_size = {config.train.batch_size} ({origin.get('train.batch_size', 'default')}), but "
            f"collect.groups_per_step x collect.group_size = {batch}.",
            f"Set train.batch_size={batch}, or change the other two.",
        )
    return config
