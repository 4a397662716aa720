"""``[engine]`` of a run file -> how weights come to vLLM servers."""

from __future__ import annotations

from longrein.config import RunConfig
from longrein.engines.vllm.urls import server_urls
from longrein.train.vllm.choose import SyncSettings, weights_folder


def sync_settings(config: RunConfig) -> SyncSettings:
    """How weights come to the run's vLLM servers. Raises :class:`~longrein.errors.ConfigError`."""
    engine = config.engine
    urls = server_urls(engine.urls)
    by_disk = engine.weight_sync != "nccl"
    return SyncSettings(
        urls=urls,
        weight_sync=engine.weight_sync,
        weights_folder=weights_folder(engine.weights_folder, config.output_dir, urls) if by_disk else "",
        pause=engine.pause,
        update_timeout_s=engine.update_timeout_s,
        outage_timeout_s=engine.outage_timeout_s,
    )


def check_engine(config: RunConfig) -> None:
    """Raise :class:`~longrein.errors.ConfigError` for settings that cannot work together."""
    if config.engine.kind == "vllm":
        sync_settings(config)
