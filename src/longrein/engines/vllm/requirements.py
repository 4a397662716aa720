"""What a server must have for each way of taking weights. Each refusal names the flag or variable that mends it."""

from __future__ import annotations

from typing import Any

from longrein.engines.vllm.control import ServerControl
from longrein.errors import EngineError


def require_updates(server: ServerControl) -> None:
    """Raise :class:`EngineError` for a server whose weights cannot be changed at all."""
    server.label()


def require_adapters(server: ServerControl) -> None:
    """Raise :class:`EngineError` for one that takes no adapters at run time."""
    require_updates(server)
    settings = server.settings()
    if settings and not _config(settings, "lora_config"):
        raise EngineError(f"{server.url} serves no adapters; start it with --enable-lora")
    if settings and not settings.get("vllm_env", {}).get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        raise EngineError(
            f"{server.url} takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its "
            "environment"
        )


def require_rank(server: ServerControl, rank: int) -> None:
    """Raise :class:`EngineError` for one that takes adapters of smaller ranks only."""
    lora = _config(server.settings(), "lora_config")
    largest = int(lora.get("max_lora_rank", rank))
    if rank > largest:
        raise EngineError(
            f"{server.url} takes adapters up to rank {largest}, the one in training has {rank}; start it with "
            f"--max-lora-rank {rank}"
        )


def require_transfer(server: ServerControl, backend: str) -> None:
    """Raise :class:`EngineError` for one without this backend of the weight-transfer API."""
    require_updates(server)
    settings = server.settings()
    found = _config(settings, "weight_transfer_config").get("backend")
    if settings and found != backend:
        raise EngineError(
            f"{server.url} has {f'the weight-transfer backend {found!r}' if found else 'no weight transfer'}; start it "
            f"""with --weight-transfer-config '{{"backend": "{backend}"}}'"""
        )


def _config(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return settings.get("vllm_config", {}).get(name) or {}
