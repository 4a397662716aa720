"""Harbor itself, imported when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from longrein.errors import ConfigError


def harbor_module(name: str) -> Any:
    """The module ``harbor.<name>``, untyped: our own checks run on a Python that Harbor does not.

    Raises:
        ConfigError: Harbor is not installed, or of another version than the one this was written for.
    """
    try:
        return import_module(f"harbor.{name}")
    except ImportError as error:
        raise ConfigError(
            f"harbor.{name} cannot be imported ({error}); `pip install 'longrein[harbor]'` into a Python 3.12 or newer"
        ) from error
