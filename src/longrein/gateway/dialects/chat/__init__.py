"""The OpenAI chat-completions dialect, which the others and the server of models lean on."""

from longrein.gateway.dialects.chat.dialect import ChatDialect
from longrein.gateway.dialects.chat.request import SAMPLING, ChatBody

__all__ = ["SAMPLING", "ChatBody", "ChatDialect"]
