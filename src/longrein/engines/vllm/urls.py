"""Where servers are: one base URL or several, all serving the same model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from longrein.errors import ConfigError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


def server_urls(given: str | Sequence[str]) -> tuple[str, ...]:
    """Base URLs without a trailing slash or ``/v1``, in the given order.

    Raises:
        ConfigError: none, one twice, or one that is no ``http://host:port``.
    """
    urls = tuple(_clean(url) for url in ([given] if isinstance(given, str) else given))
    if not urls:
        raise ConfigError("no URL of a vLLM server; give one such as http://127.0.0.1:8000")
    if len(set(urls)) < len(urls):
        raise ConfigError(f"a vLLM server is named twice in {', '.join(urls)}; name each once")
    return urls


def port_of(url: str) -> int:
    """The port that a base URL names, or its scheme's own."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_here(url: str) -> bool:
    """Whether a URL names this machine."""
    return urlsplit(url).hostname in LOOPBACK


def authorization() -> dict[str, str]:
    """The header for a server started with ``--api-key``: from ``VLLM_API_KEY``, where the server looks too."""
    key = os.environ.get("VLLM_API_KEY", "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _clean(url: str) -> str:
    clean = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(clean)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is no base URL of a server; give one such as http://127.0.0.1:8000")
    return clean
