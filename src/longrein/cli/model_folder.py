"""Model names -> folders: the engine and the trainer load one and the same copy."""

# huggingface_hub is partly untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

import msgspec

from longrein.config import RunConfig
from longrein.errors import ConfigError


def with_model_folder(config: RunConfig) -> RunConfig:
    """The run with its model as a local folder; a hub id is downloaded once, into the library's cache.

    Raises:
        ConfigError: neither a folder nor a hub id that can be had.
    """
    path = model_folder(config.model.path)
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=path))


def model_folder(model: str) -> str:
    """The folder of a model named by folder or hub id. Raises :class:`~longrein.errors.ConfigError`."""
    if Path(model).is_dir():
        return str(Path(model).resolve())
    if Path(model).is_absolute():
        raise ConfigError("no such folder; give a model folder or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"])
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ConfigError(f"no such folder, and it cannot be had from the hub: {first_line}") from error


def check_context_length(config: RunConfig) -> None:
    """Raise :class:`~longrein.errors.ConfigError` when the run asks for more context than the model has positions."""
    from transformers import AutoConfig

    try:
        text_config = AutoConfig.from_pretrained(model_folder(config.model.path)).get_text_config()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model's config.json cannot be read: {error}") from error
    limit = getattr(text_config, "max_position_embeddings", None)
    if limit is not None and config.model.context_length > limit:
        raise ConfigError(f"the model has {limit} positions; give at most that")
