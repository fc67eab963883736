"""Read a transformers checkpoint: safetensors only, no code of its own, complete or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from kpipe.errors import PolicyError
from kpipe.policy import lora
from kpipe.policy.files import PATTERNS
from kpipe.policy.logprobs import head_is_plain

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def locate(model: str) -> Path:
    """The directory of a checkpoint; a hub id is downloaded first. Raises PolicyError."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or not _HUB_ID.fullmatch(model):
        raise PolicyError(
            f"There is no model directory {model}.", "Set policy.model to a checkpoint directory or a hub id."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(model, allow_patterns=list(PATTERNS), ignore_patterns=["*/*"]))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise PolicyError(
            f"{model} is no directory here, and the hub does not give it ({type(error).__name__}).",
            "Check the name and the network (a gated model needs HF_TOKEN), or give a directory.",
        ) from None


def choose_device(device: str) -> torch.device:
    """`auto` means the GPU where there is one. Raises PolicyError for a device that this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError):
        raise PolicyError(
            f"This machine has no device {device!r}.", "Use auto, cpu, or a device that torch finds."
        ) from None
    return chosen


def read_model(path: Path, dtype: str, device: torch.device | str = "cpu") -> Any:
    """The causal language model at `path`, in evaluation mode; an adapter is merged into its weights.

    Raises PolicyError.
    """
    if lora.is_adapter(path):
        base = locate(lora.base_path(path))
        return lora.load(read_model(base, dtype, device), path, trainable=False).merge_and_unload().eval()
    if not (path / "config.json").is_file():
        raise PolicyError(f"{path} holds no checkpoint: there is no config.json.", "Check the path.")
    if not list(path.glob("*.safetensors")):
        raise PolicyError(
            f"{path} holds no safetensors weights.",
            "kpipe reads no pickled weights: save the model with save_pretrained() of a recent transformers.",
        )
    quiet()
    loader: Any = transformers.AutoModelForCausalLM
    try:
        model, loading = loader.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, KeyError, TypeError) as error:
        raise PolicyError(
            f"The checkpoint {path} cannot be loaded: {_first_line(error)}",
            "Use a complete checkpoint of a text model that this version of transformers knows.",
        ) from None
    if missing := sorted(loading["missing_keys"]):
        raise PolicyError(
            f"The checkpoint {path} is incomplete: {missing[0]} is missing (and {len(missing) - 1} more).",
            "Copy it again.",
        )
    return model.to(device).eval()


def check_architecture(model: Any, path: Path) -> None:
    """Refuse models whose log-probabilities `completion_logprobs` would get wrong. Raises PolicyError."""
    if not head_is_plain(model):
        raise PolicyError(
            f"{type(model).__name__} ({path}) caps or scales its logits, which kpipe cannot train.",
            "Use a model without that, such as Qwen2, Qwen3 or Llama.",
        )


def read_config(path: Path) -> Any:
    """The model's configuration at `path`. Raises PolicyError."""
    try:
        return transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise PolicyError(
            f"The checkpoint {path} cannot be loaded: {_first_line(error)}",
            "Use a complete checkpoint of a text model that this version of transformers knows.",
        ) from None


def read_tokenizer(path: Path) -> Any:
    """The tokenizer at `path`, with a chat template and an end token. Raises PolicyError."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise PolicyError(
            f"The tokenizer in {path} cannot be loaded: {_first_line(error)}",
            "Copy the tokenizer's files beside the weights.",
        ) from None
    if not tokenizer.encode("a"):
        raise PolicyError(
            f"There is no tokenizer in {path}.", "Copy the tokenizer's files beside the weights."
        )
    if not tokenizer.chat_template:
        raise PolicyError(
            f"The tokenizer in {path} has no chat template.",
            "Use an instruction-tuned checkpoint, or put a chat_template.jinja beside its tokenizer.",
        )
    if tokenizer.eos_token_id is None:
        raise PolicyError(
            f"The tokenizer in {path} has no end token.", "Set eos_token in tokenizer_config.json."
        )
    return tokenizer


def quiet() -> None:
    """No bars or warnings: what is wrong with a checkpoint is said once, by the PolicyError."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if lines[0].endswith((".", "!", "?")) else f"{lines[0]}."
