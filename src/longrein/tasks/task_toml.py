"""``task.toml`` of a task directory: what we take from it, checked, and written back."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from longrein.errors import TaskError
from longrein.types import VerdictName

_READ = {"metadata": None, "agent": {"timeout_sec"}, "verifier": {"timeout_sec", "verdict"}, "environment": set[str]()}
"""Sections and the keys that we read of them; ``None``: all of them."""
_HARMLESS = frozenset({"version", "schema_version", "task"})
_DEFAULT_AGENT_TIMEOUT_S = 600.0
_DEFAULT_VERIFIER_TIMEOUT_S = 600.0
_LONGEST_S = 1e9


class TaskToml(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``task.toml`` says that we use. Timeouts not given are Harbor's own default, 600 s."""

    metadata: dict[str, Any] = {}
    agent_timeout_s: float = _DEFAULT_AGENT_TIMEOUT_S
    verifier_timeout_s: float = _DEFAULT_VERIFIER_TIMEOUT_S
    verdict: VerdictName = "reward"
    """Ours, not Harbor's: what the hidden test leaves as its verdict."""


class ParsedTaskToml(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, what is wrong with them, and which keys mean something only in a container."""

    value: TaskToml
    problems: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def parse_task_toml(path: Path) -> ParsedTaskToml:
    """Read a ``task.toml``, gathering problems instead of raising."""
    if not path.is_file():
        return ParsedTaskToml(value=TaskToml(), problems=("missing; an empty one is enough",))
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        return ParsedTaskToml(value=TaskToml(), problems=(f"is not UTF-8 (byte {error.start}); save it as UTF-8",))
    except (ValueError, RecursionError) as error:
        # Beside its own error: numbers of thousands of digits, tables a thousand levels deep.
        return ParsedTaskToml(value=TaskToml(), problems=(f"bad TOML: {error}",))
    return _check(document, text)


def _check(document: dict[str, Any], text: str) -> ParsedTaskToml:
    problems: list[str] = []
    if "steps" in document:
        problems.append("[[steps]]: tasks of several steps are not supported; make each step a task of its own")
    sections = {name: _section(document, name, problems) for name in _READ}
    value = TaskToml(
        metadata=sections["metadata"],
        agent_timeout_s=_timeout(sections, "agent", _DEFAULT_AGENT_TIMEOUT_S, problems),
        verifier_timeout_s=_timeout(sections, "verifier", _DEFAULT_VERIFIER_TIMEOUT_S, problems),
        verdict=_verdict(sections["verifier"], problems),
    )
    placed = tuple(f"{_line_of(problem, text)}{problem}" for problem in problems)
    return ParsedTaskToml(value=value, problems=placed, ignored=tuple(_ignored(document, sections)))


def _line_of(problem: str, text: str) -> str:
    """``line 3: ``, where the text has the table, or the key of one, that the problem begins with; else nothing."""
    begun = re.match(r"(\[+[^\]]*\]+)? ?(\w*)", problem)
    table, key = (begun[1] or "", begun[2]) if begun else ("", "")
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        here = stripped if stripped.startswith("[") else here
        found = stripped == table if not key else re.match(rf"{key}\s*=", stripped) and here.startswith(table)
        if found:
            return f"line {number}: "
    return ""


def _verdict(section: dict[str, Any], problems: list[str]) -> VerdictName:
    verdict: object = section.get("verdict", "reward")
    if verdict not in get_args(VerdictName):
        problems.append(f"[verifier] verdict = {verdict!r}: must be one of {', '.join(get_args(VerdictName))}")
        return "reward"
    return cast("VerdictName", verdict)


def _section(document: dict[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    section = document.get(name, {})
    if isinstance(section, dict):
        return cast("dict[str, Any]", section)
    problems.append(f"{name} = {section!r}: must be a table, as in [{name}]")
    return {}


def _timeout(sections: dict[str, dict[str, Any]], name: str, default: float, problems: list[str]) -> float:
    seconds: object = sections[name].get("timeout_sec", default)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_S:
        problems.append(f"[{name}] timeout_sec = {seconds!r}: must be a number of seconds above 0")
        return default
    return float(seconds)


def _ignored(document: dict[str, Any], sections: dict[str, dict[str, Any]]) -> list[str]:
    unknown = [name for name in document if name not in _READ and name not in _HARMLESS and name != "steps"]
    for name, known in _READ.items():
        if known is not None:
            unknown += [f"{name}.{key}" for key in sections[name] if key not in known]
    return unknown


def write_task_toml(settings: TaskToml) -> str:
    """The text of a ``task.toml``.

    Raises:
        TaskError: metadata holds something that TOML has no form for.
    """
    metadata = "".join(f"{_key(key)} = {_value(value, key)}\n" for key, value in settings.metadata.items())
    return (
        'version = "1.0"\n\n'
        f"[metadata]\n{metadata}\n"
        f"[agent]\ntimeout_sec = {settings.agent_timeout_s!r}\n\n"
        f"[verifier]\ntimeout_sec = {settings.verifier_timeout_s!r}\n{_own(settings)}"
    )


def _own(settings: TaskToml) -> str:
    # Harbor does not know the key: it is left out where it says nothing.
    return "" if settings.verdict == "reward" else f'verdict = "{settings.verdict}"\n'


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TaskError(f"metadata key {key!r}: TOML keys are strings. Use one.")
    return _string(key)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object, where: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            items = cast("list[object]", value)
            return f"[{', '.join(_value(item, where) for item in items)}]"
        case Mapping():
            pairs = cast("Mapping[object, object]", value)
            return f"{{{', '.join(f'{_key(key)} = {_value(item, where)}' for key, item in pairs.items())}}}"
        case _:
            raise TaskError(f"metadata {where!r} holds {value!r}, which TOML has no form for. Leave it out.")
