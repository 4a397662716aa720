"""Which secret belongs to which session."""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b

from longrein.errors import ConfigError, GatewayRequestError
from longrein.gateway.session import GatewaySession

SECRET_BYTES = 24


class Keys:
    """One unguessable secret a session. It serves as API key and as path prefix."""

    def __init__(self) -> None:
        self._sessions: dict[str, GatewaySession] = {}
        self._secrets: dict[str, str] = {}
        self._by_digest: dict[bytes, str] = {}

    def issue(self, session: GatewaySession) -> str:
        """A new secret. Raises :class:`ConfigError` when the session's id is taken."""
        if session.session_id in self._sessions:
            raise ConfigError(f"session {session.session_id!r} is open already; session ids must differ")
        secret = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions[session.session_id] = session
        self._secrets[session.session_id] = secret
        self._by_digest[_digest(secret)] = session.session_id
        return secret

    def revoke(self, session_id: str) -> GatewaySession:
        """End a key's life. Raises :class:`ConfigError` for an unknown session."""
        session = self.session(session_id)
        del self._sessions[session_id]
        del self._by_digest[_digest(self._secrets.pop(session_id))]
        return session

    def session(self, session_id: str) -> GatewaySession:
        """An open session by id. Raises :class:`ConfigError` for an unknown one."""
        if session_id not in self._sessions:
            raise ConfigError(f"session {session_id!r} is not open at this gateway; call open_session() first")
        return self._sessions[session_id]

    def open_sessions(self) -> tuple[str, ...]:
        """Ids of all open sessions."""
        return tuple(self._sessions)

    def authenticate(self, secret: str) -> GatewaySession:
        """The session of a secret. Raises :class:`GatewayRequestError` (401) for any other string."""
        # Found by digest, compared in constant time: nothing about a secret can be learned from how long it takes.
        session_id = self._by_digest.get(_digest(secret), "")
        expected = self._secrets.get(session_id, "")
        if not hmac.compare_digest(expected.encode(), secret.encode("utf-8", "replace")) or not expected:
            raise GatewayRequestError("Incorrect API key provided.", status=401, code="invalid_api_key")
        return self._sessions[session_id]


def _digest(secret: str) -> bytes:
    return blake2b(secret.encode("utf-8", "replace")).digest()
