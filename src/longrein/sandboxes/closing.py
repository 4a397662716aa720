"""The end of a sandbox that somebody is done with: what cannot be removed costs nobody a verdict."""

from __future__ import annotations

import logging

from longrein.sandboxes.base import Sandbox

_LOG = logging.getLogger(__name__)


async def close_or_log(sandbox: Sandbox) -> None:
    """Close a sandbox. Everything in it is dead afterwards; folders that stay are said in the log."""
    try:
        await sandbox.close()
    except OSError as error:
        _LOG.warning("a closed sandbox left something behind: %s", error)
