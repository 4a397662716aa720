"""System messages where chat templates take them: one, at the beginning.

Agents put system (or developer) messages between the others, or several in a row. Templates refuse that (Qwen3.5) or
drop it (MiniMax M2), so those that come late become what Claude Code itself makes of them for models that know no
other way: the user's text, in tags. Gemini's contents hold no system messages.
"""

from __future__ import annotations

from longrein.types import Message


def folded(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same conversation with at most one system message, the first. No message is changed in place.

    A late one joins the user's messages beside it, since many templates want turns to take turns.
    """
    lead = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    opening, rest = messages[:lead], messages[lead:]
    if len(opening) > 1:
        opening = ({**opening[0], "content": "\n\n".join(filter(None, map(_text, opening)))},)
    if all(message["role"] != "system" for message in rest):
        return (*opening, *rest)
    return (*opening, *_with_reminders(rest))


def _with_reminders(messages: tuple[Message, ...]) -> list[Message]:
    said: list[Message] = []
    reminded = False
    for message in messages:
        reminds = message["role"] == "system"
        text = _reminder(_text(message)) if reminds else _text(message)
        beside = bool(said) and said[-1]["role"] == "user"
        if beside and (reminds or (reminded and message["role"] == "user")):
            said[-1] = {**said[-1], "content": "\n".join(filter(None, [_text(said[-1]), text]))}
            reminded = True
        else:
            said.append({"role": "user", "content": text} if reminds else message)
            reminded = reminds
    return said


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>" if text else ""


def _text(message: Message) -> str:
    return message.get("content") or ""
