"""Where an OpenAI-compatible API lies and the key to it, which never leaves this module in any message."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from kpipe.config import CoderConfig
from kpipe.errors import CoderError

OPENAI_URL = "https://api.openai.com/v1"
AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
NO_KEY = "none"
"""Sent where no key is needed: the client insists on one."""
REASON_CHARS = 300
_KEY = re.compile(r"[!-~]+")
_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|pk|key|tok)-[\w*.-]{3,}", re.I)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` has neither user, password nor query, so it may be shown and stored."""

    url: str
    query: dict[str, str] = field(repr=False)
    key: str = field(repr=False)
    azure: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """Beside `Authorization`: Azure wants the key under another name."""
        return {"api-key": self.key} if self.azure else {}

    def scrub(self, text: str) -> str:
        """What somebody else wrote, fit for a message: one short line without our secrets."""
        for secret in (self.key, *self.query.values()):
            if secret != NO_KEY and len(secret) > 3:
                text = text.replace(secret, "[secret]")
        text = " ".join(_LOOKS_LIKE_KEY.sub("[secret]", text).split())
        return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS].rstrip()} ..."


def find_endpoint(cfg: CoderConfig, environ: Mapping[str, str]) -> Endpoint:
    """An Azure resource alone is completed: by its deployment `coder.model` where an api-version is given.

    Raises CoderError when the key is not there.
    """
    parts = urlsplit(cfg.base_url or OPENAI_URL)
    host, query = parts.hostname or "", dict(parse_qsl(parts.query))
    path, azure = parts.path.rstrip("/"), host.endswith(AZURE_HOSTS) or "/openai/deployments/" in parts.path
    if azure and path in ("", "/openai"):
        path = f"/openai/deployments/{quote(cfg.model)}" if "api-version" in query else "/openai/v1"
    path = path.removesuffix("/chat/completions")
    url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return Endpoint(url, query, _find_key(cfg, environ, url, host), azure)


def _find_key(cfg: CoderConfig, environ: Mapping[str, str], url: str, host: str) -> str:
    key = environ.get(cfg.api_key_env, "").strip() if cfg.api_key_env else NO_KEY
    name = cfg.api_key_env
    if not key and _is_here(host):
        return NO_KEY
    if not key:
        raise CoderError(
            f"{cfg.model} at {url} needs an API key, and the environment variable {name} is not set.",
            f'export {name}=..., or name another in coder.api_key_env; "" is for a server that wants none.',
        )
    if not _KEY.fullmatch(key):
        raise CoderError(
            f"The environment variable {name} holds characters that no API key has.",
            "Set it to the key alone, without blanks or line ends.",
        )
    return key


def _is_here(host: str) -> bool:
    """True for this machine's own addresses, where servers rarely want a key."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
