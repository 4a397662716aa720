"""The capture gateway: speaks the agents' dialects, asks the engine in token ids, records every call."""

from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.gateway import Gateway
from longrein.gateway.session import SessionRecord
from longrein.gateway.settings import GatewaySettings

__all__ = ["ChatReply", "ChatRequest", "Gateway", "GatewaySettings", "SessionRecord"]
