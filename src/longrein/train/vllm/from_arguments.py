"""The trainer's arguments about vLLM -> how weights come to its servers."""

from __future__ import annotations

from typing import cast

from longrein.engines.vllm.control import PauseMode
from longrein.engines.vllm.urls import server_urls
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.vllm.choose import SyncSettings, WeightSync, weights_folder


def sync_settings(args: AsyncGRPOConfig) -> SyncSettings:
    """Settings of ``vllm_server_base_url`` and its fellows.

    Raises:
        ConfigError: a value that cannot work.
    """
    urls = server_urls(args.vllm_server_base_url or ())
    by_disk = args.vllm_weight_sync != "nccl"
    folder = weights_folder(args.vllm_weights_folder, str(args.output_dir), urls) if by_disk else ""
    return SyncSettings(
        urls=urls,
        weight_sync=cast(WeightSync, args.vllm_weight_sync),
        weights_folder=folder,
        pause=cast(PauseMode, args.vllm_pause),
        update_timeout_s=args.vllm_server_timeout,
        outage_timeout_s=args.vllm_server_timeout,
    )
