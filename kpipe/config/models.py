"""Every setting with its type, default and meaning: one frozen model per stage."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

PUBLIC_OPTIONS = ("api-version", "api_version", "version", "deployment", "region")
"""What the query of an address may say: it is stored with the run, and keys are often sent in one."""
LARGEST = 2**63 - 1
"""The largest whole number that a database holds."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    @field_validator("*")
    @classmethod
    def _fits_the_database(cls, value: object) -> object:
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
                raise ValueError(f"is too large: whole numbers end at {LARGEST}")
        return value


def _address(value: str, key_setting: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("is no address like http://localhost:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"holds a user name or password, and would be stored with the run; use {key_setting}"
        )
    names = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if parts.fragment or not set(names) <= set(PUBLIC_OPTIONS):
        raise ValueError(
            f"may have a query of {', '.join(PUBLIC_OPTIONS)} only, because it is stored with the run;"
            f" a key belongs into the environment, see {key_setting}"
        )
    return value


def _variable_name(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
        raise ValueError("is the name of an environment variable, never the key itself")
    return value


class ProblemsConfig(Section):
    """Which problems a run samples."""

    suite: str = Field(
        "builtin", description="suite of problems: builtin, or the name given to `problems add`"
    )
    split: Literal["train", "heldout", "all"] = Field("train", description="which split is sampled")
    levels: tuple[int, ...] = Field((), description="only these levels; empty means all")
    names: tuple[str, ...] = Field((), description="only these problems; empty means all")


class PolicyConfig(Section):
    """Who suggests."""

    kind: Literal["tiny", "local", "server"] = Field(
        "tiny",
        description="tiny: built on the spot; local: a transformers model; server: one that vLLM or SGLang serves",
    )
    model: str = Field(
        "Qwen/Qwen2-0.5B-Instruct", description="directory or hub id, for kind = local and kind = server"
    )
    base_url: str = Field("", description="address of the server, for kind = server")
    engine: Literal["auto", "vllm", "sglang"] = Field(
        "auto", description="the server's protocol: /v1/completions or /generate; auto: as it names itself"
    )
    served_model: str = Field("", description="model name at the server; empty means the one that it lists")
    api_key_env: str = Field(
        "", description="environment variable with the server's key; empty: no key is sent"
    )
    concurrency: int = Field(256, gt=0, description="requests in flight at the server")
    timeout_s: float = Field(
        600.0, gt=0, description="deadline of one suggestion by the server, retries included"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="weights and arithmetic")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; the trainer applies it as well")
    max_new_tokens: int = Field(40, gt=0, description="length limit of a suggestion")
    max_prompt_tokens: int = Field(2048, gt=0, description="longer prompts end the trajectory as a fault")
    prompt: str = Field("compact", description="template in kpipe/prompts, or path of a .txt file")
    batch_size: int = Field(64, gt=0, description="prompts sampled together")
    batch_wait_s: float = Field(
        0.05, ge=0, description="how long a prompt waits for others to join its batch"
    )
    warmstart_steps: int = Field(200, gt=0, description="supervised steps that build the tiny policy")
    threads: int = Field(
        0, ge=0, description="CPU threads for sampling; 0 means all that the process may use"
    )

    @field_validator("base_url")
    @classmethod
    def _address_without_secrets(cls, value: str) -> str:
        return _address(value, "policy.api_key_env")

    @field_validator("api_key_env")
    @classmethod
    def _name_not_key(cls, value: str) -> str:
        return _variable_name(value)


class CoderConfig(Section):
    """Who implements."""

    kind: Literal["builtin", "openai"] = Field(
        "builtin", description="builtin: offline rules; openai: any compatible API"
    )
    model: str = Field("gpt-4o", description="model name at the API")
    base_url: str = Field("", description="API base URL; empty means OpenAI's")
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="environment variable with the key; empty: no key is sent"
    )
    temperature: float = Field(0.0, ge=0, description="sampling temperature of the coder")
    max_tokens: int = Field(8192, gt=0, description="length limit of a reply")
    concurrency: int = Field(16, gt=0, description="requests in flight")
    timeout_s: float = Field(180.0, gt=0, description="total deadline of one request, retries included")
    max_retries: int = Field(
        5, ge=0, description="retries on 408, 409, 429, 5xx, timeouts and cut connections"
    )
    rpm: int | None = Field(
        None, gt=0, description="requests per minute of one collector; empty: no limit of ours"
    )
    tpm: int | None = Field(
        None, gt=0, description="tokens per minute of one collector; empty: no limit of ours"
    )
    continuations: int = Field(
        1, ge=0, description="times that a reply which was cut off at max_tokens is asked to go on"
    )
    samples: int = Field(1, ge=1, description="kernels that the coder writes for each suggestion")
    score: Literal["best", "mean"] = Field("best", description="reward of a suggestion with several samples")
    max_usd: float | None = Field(
        None, ge=0, description="the run's collection stops before its calls cost more; empty: no limit"
    )
    usd_per_million_in: float = Field(2.5, ge=0, description="price of prompt tokens, for the ledger")
    usd_per_million_cached: float | None = Field(
        None, ge=0, description="price of prompt tokens that the server had cached; empty: as the others"
    )
    usd_per_million_out: float = Field(10.0, ge=0, description="price of reply tokens, for the ledger")

    @field_validator("base_url")
    @classmethod
    def _address_without_secrets(cls, value: str) -> str:
        return _address(value, "coder.api_key_env")

    @field_validator("api_key_env")
    @classmethod
    def _name_not_key(cls, value: str) -> str:
        return _variable_name(value)


class CollectConfig(Section):
    """How episodes are run."""

    group_size: int = Field(
        4, ge=1, description="trajectories of one problem that are compared with each other"
    )
    groups_per_step: int = Field(
        4, ge=1, description="groups that make one update (batch_size = groups x group_size)"
    )
    max_steps_per_episode: int = Field(4, ge=1, description="refinement turns of one trajectory")
    max_off_policy_steps: int = Field(1, ge=0, description="how many updates old a trained group may be")
    sampling: Literal["uniform", "round_robin", "by_solve_rate"] = Field(
        "round_robin",
        description="how problems are drawn; by_solve_rate: most often those that are solved half of the time",
    )
    lease_s: float = Field(20.0, gt=0, description="a collector that is silent for so long loses its groups")
    drain_s: float = Field(
        25.0, ge=0, description="after SIGTERM, how long paid coder calls may still take to come in"
    )


class EvaluateConfig(Section):
    """How kernels are judged."""

    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    builders: int = Field(
        0, ge=0, description="builds at the same time; 0 means one per core that does not time"
    )
    trials: int = Field(5, ge=1, description="correctness trials on fresh random inputs")
    atol: float = Field(1e-4, ge=0, description="absolute tolerance for float32; 1e-2 for half types")
    rtol: float = Field(1e-4, ge=0, description="relative tolerance for float32; 1e-2 for half types")
    build_timeout_s: float = Field(120.0, gt=0, description="limit of one build")
    run_timeout_s: float = Field(30.0, gt=0, description="limit of loading, checking and timing one kernel")
    memory_mb: int = Field(4096, gt=0, description="memory limit of one candidate")
    timing_budget_s: float = Field(0.6, gt=0, description="timing stops here at the latest")
    timing_precision: float = Field(0.02, gt=0, description="timing stops when the interval is this narrow")
    lease_s: float = Field(30.0, gt=0, description="a worker that is silent for so long loses its job")
    max_attempts: int = Field(
        3, ge=1, description="attempts before a job that keeps killing workers is failed"
    )
    cache_dir: str = Field("", description="compiled kernels; empty means ~/.cache/kpipe")
    cache_mb: int = Field(2048, gt=0, description="size limit of the build cache")


class RewardConfig(Section):
    """The seed's formula by default."""

    not_compiled: float = Field(-1.0, description="reward when the kernel does not build or load")
    incorrect: float = Field(-0.5, description="reward when it runs and is wrong")
    correct: float = Field(0.3, description="base reward of a correct kernel")
    unchanged: float = Field(0.0, description="reward when the code is that of the parent or the reference")
    speedup_weight: float = Field(1.0, description="weight of the speedup term")
    speedup_cap: float | None = Field(None, gt=0, description="speedups above count as this")
    speedup_floor: float | None = Field(None, gt=0, description="speedups below earn no bonus")
    use_lower_bound: bool = Field(
        False, description="use the lower bound of the interval in place of the median"
    )
    transform: Literal["linear", "log"] = Field("linear", description="how the speedup enters")


class TrainConfig(Section):
    """The update. Names are the seed's where it has them."""

    batch_size: int = Field(16, ge=1, description="trajectories of one update: groups_per_step x group_size")
    mini_batch_size: int = Field(4, ge=1, description="turns in one forward and backward pass")
    gradient_accumulation_steps: int = Field(2, ge=1, description="mini-batches in one optimizer step")
    ppo_epochs: int = Field(2, ge=1, description="passes over the batch")
    learning_rate: float = Field(1e-5, ge=0, description="AdamW step size; 0 is the control experiment")
    warmup_steps: int = Field(0, ge=0, description="updates over which the step size rises")
    weight_decay: float = Field(0.0, ge=0, description="AdamW decay of the weights")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW decay of the mean gradient")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="AdamW decay of its square")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient clipping")
    gamma: float = Field(0.4, ge=0, le=1, description="discount over the turns of a trajectory")
    max_steps: int = Field(100, ge=1, description="updates of the run")
    advantage: Literal["grpo", "rloo", "max_rl"] = Field("grpo", description="baseline of the group")
    scale_rewards: Literal["none", "group", "batch"] = Field(
        "none", description="division by a standard deviation"
    )
    group_by: Literal["problem", "problem_turn"] = Field(
        "problem_turn", description="what a sample is compared with"
    )
    min_group_spread: float = Field(
        1e-6, ge=0, description="groups whose returns differ by no more are dropped"
    )
    drop_truncated: bool = Field(
        False,
        description="leave suggestions that hit max_new_tokens out of the loss, not out of the baseline",
    )
    policy_loss: Literal["ppo_clip", "cispo", "dppo_tv"] = Field(
        "ppo_clip",
        description="what is clipped: the objective, the weight (CISPO), or the change of probability",
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        "token", description="ratio of each token, or of the whole suggestion (GSPO)"
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="lower clip of the ratio")
    clip_high: float = Field(0.28, gt=0, description="upper clip of the ratio (clip-higher)")
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss of negative advantages")
    kl_beta: float = Field(0.001, ge=0, description="weight of the KL to the frozen reference; 0 skips it")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the KL (Schulman 2020)")
    proximal: Literal["behaviour", "recompute"] = Field(
        "behaviour", description="what the ratio is taken against"
    )
    reference: str = Field(
        "", description="directory or hub id of the policy that KL holds to; empty means policy version 0"
    )
    off_policy_correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_geo_mask"
    ] = Field("token_truncate", description="how a sampler that differs from the trainer is corrected for")
    correction_cap: float = Field(2.0, gt=0, description="cap of the correction weight")
    correction_floor: float | None = Field(
        None, gt=0, description="masks drop what lies below; empty means 1 / correction_cap"
    )
    loss_aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"] = Field(
        "token_mean", description="how token losses become one number"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="weights and arithmetic")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    threads: int = Field(0, ge=0, description="CPU threads; 0 means all that the process may use")
    packing: bool = Field(
        False, description="turns one behind the other without padding, told apart by their positions"
    )
    max_tokens_per_micro_batch: int = Field(
        0, ge=0, description="tokens in one forward and backward pass; 0 means mini_batch_size turns"
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, a third more work"
    )
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters; 0 trains all parameters")
    lora_alpha: float = Field(32.0, gt=0, description="LoRA scale: the adapter counts alpha / rank times")
    lora_targets: tuple[str, ...] = Field(
        (), description="names of the layers that get an adapter; empty means all linear ones"
    )
    keep_last: int = Field(3, ge=1, description="checkpoints with optimizer state that are kept")
    keep_every: int = Field(10, ge=0, description="weights of every so many updates are kept; 0 means none")
    sinks: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="where metrics are written to as well, under the run's directory"
    )
    peak_tflops: float = Field(
        0.0, ge=0, description="what MFU is measured against; 0 means the known figure of the device"
    )


class Config(Section):
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
