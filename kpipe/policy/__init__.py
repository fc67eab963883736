"""Who suggests: the port, transformers checkpoints, served models, and the small policy built on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kpipe.config import Config, PolicyConfig
from kpipe.policy.base import Policy, Suggestion, SuggestRequest
from kpipe.policy.files import digest

__all__ = ["Policy", "SuggestRequest", "Suggestion", "digest", "open_policy", "prepare_base"]


def open_policy(config: PolicyConfig, path: str | Path, version: int = 0) -> Policy:
    """The policy whose checkpoint is the directory or hub id `path`. Raises PolicyError."""
    from kpipe.policy.checkpoint import locate

    if config.kind == "server":
        from kpipe.policy.server import ServerPolicy

        return ServerPolicy(config, locate(str(path)), version)
    from kpipe.policy.local import LocalPolicy

    return LocalPolicy(config, locate(str(path)), version)


def prepare_base(config: Config, path: Path, progress: Callable[[float], None] | None = None) -> str:
    """Put the untrained policy of a run into the directory `path` and return its digest.

    `tiny` is built there; a `local` or served model is linked there, after a download where it is a hub id. What is
    there already is kept. `progress` hears the finished share, 0 to 1. Raises PolicyError.
    """
    if config.policy.kind == "tiny":
        from kpipe.policy.tiny import ensure

        return ensure(path, config, progress)
    if config.policy.kind == "server":
        from kpipe.policy.server import link_served

        return link_served(path, config.policy)
    from kpipe.policy.local import link_base

    return link_base(path, config.policy)
