"""The opaque signature on a Gemini function call, which every client sends back.

Some clients lose the id of a call (OpenCode's Google provider, for one) but none the signature, so ours is the id.
"""

from __future__ import annotations

import base64
import binascii

PREFIX = b"longrein:"
_URL_SAFE = str.maketrans("-_", "+/")


def sign(call_id: str) -> str:
    """A signature, in base64 as Google's are."""
    return base64.b64encode(PREFIX + call_id.encode()).decode()


def signed_id(signature: str) -> str:
    """The call id in a signature of ours, in either base64 alphabet; empty for anybody else's."""
    try:
        data = base64.b64decode(signature.translate(_URL_SAFE).encode())
        return data.removeprefix(PREFIX).decode() if data.startswith(PREFIX) else ""
    except (binascii.Error, UnicodeError):
        return ""
