"""A session as a loop sees it: every tool call has a result, and what goes wrong in a tool is told to the model.

OpenEnv's own loop lets an exception of a tool end the rollout, and shows the model only a result's ``data``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from longrein.errors import InfrastructureError
from longrein.sessions.leash import Leash
from longrein.sessions.openenv import OpenEnvSession, foreign
from longrein.sessions.openenv_types import ResourceSession, ToolResultShape, ToolShape, given
from longrein.sessions.session_thread import too_late
from longrein.types import Message

T = TypeVar("T")

RESERVED = frozenset({"reset", "step", "state", "close"})
"""OpenEnv's ``RESERVED_TOOL_NAMES``: they drive the environment, and are no model's to call."""
LOST_CONNECTIONS = frozenset({"websockets.exceptions.WebSocketException", "httpx.TransportError"})
"""Errors of the world that are no ``OSError``, by name: their packages are OpenEnv's, not ours."""
OF_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""``OSError`` about a path, which the model has chosen: told to it, or it could choose not to be judged."""


class HeardSession:
    """What an adapter's loop gets in place of the session. Used in the loop's thread; calls run in the session's.

    Calls raise :class:`~longrein.errors.InfrastructureError` when the environment is gone or does not return in time.
    """

    def __init__(self, session: OpenEnvSession, leash: Leash) -> None:
        self._session = session
        self._leash = leash

    def initial_messages(self) -> list[Message]:
        """See OpenEnv's ``ResourceSession``."""
        return list(self._ask("initial_messages", lambda inner: inner.initial_messages()))

    def list_tools(self) -> Sequence[ToolShape]:
        """See OpenEnv's ``ResourceSession``."""
        return list(self._ask("list_tools", lambda inner: inner.list_tools()))

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResultShape:
        """The tool's result. An error is in its ``data`` too, since that is all that a loop shows the model."""
        return self._wait("call_tool", lambda inner: call_heard(inner, name, arguments))

    def __getattr__(self, name: str) -> Any:
        """Whatever else the session has, for adapters that know it."""
        return getattr(self._session.session, name)

    def _ask(self, name: str, method: Callable[[ResourceSession], T]) -> T:
        def asked(inner: ResourceSession) -> T:
            with foreign(f"{type(inner).__name__}.{name}()"):
                return method(inner)

        return self._wait(name, asked)

    def _wait(self, name: str, work: Callable[[ResourceSession], T]) -> T:
        inner, timeout_s = self._session.session, self._session.call_timeout_s
        future = self._session.thread.submit(lambda: work(inner))
        try:
            return self._leash.wait(future, timeout_s)
        except TimeoutError as error:
            if not future.cancel():
                # It has come after all, at the last moment.
                return future.result()
            raise too_late(f"{type(inner).__name__}.{name}()", timeout_s) from error


def call_heard(session: ResourceSession, name: str, arguments: dict[str, Any]) -> ToolResultShape:
    """Call a tool; what goes wrong in it is its result.

    Raises:
        InfrastructureError: the environment is gone.
    """
    if name in RESERVED:
        return _failed(f"{name!r} is no tool")
    try:
        return _with_error_in_data(session.call_tool(name, arguments))
    except InfrastructureError:
        raise
    except asyncio.CancelledError:
        # Of a loop of its own, such as a client's whose scope was left.
        return _failed("the tool was cancelled")
    except SystemExit as error:
        # What argparse does with arguments that it does not know: the model's doing, which ends nothing of ours.
        return _failed(f"the tool called exit({error.code!r})")
    except Exception as error:
        if _of_the_world(error):
            raise InfrastructureError(f"tool {name!r} lost its environment: {type(error).__name__}: {error}") from error
        return _failed(_words(error))


def as_text(data: Any) -> str:
    """A tool's data as a message's content, as OpenEnv writes it."""
    if data is None:
        return ""
    if isinstance(data, str):
        return data
    try:
        return json.dumps(data, sort_keys=True, default=str)
    except (TypeError, ValueError):
        # Keys of several types, or none that JSON has; or it holds itself.
        return str(data)


def _with_error_in_data(result: ToolResultShape) -> ToolResultShape:
    if isinstance(result.data, str) and not _is_text(result.data):
        # Half a surrogate pair, such as a file's name that is no UTF-8: no message could hold it.
        said = result.data.encode(errors="replace").decode()
        result = given().tool_result(data=said, done=result.done, metadata=dict(result.metadata), error=result.error)
    if result.error is None or _tells(result.data, result.error):
        return result
    said = {"error": result.error} if result.data in (None, "") else {"error": result.error, "data": result.data}
    return given().tool_result(data=said, done=result.done, metadata=dict(result.metadata), error=result.error)


def _is_text(data: str) -> bool:
    try:
        data.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tells(data: Any, error: str) -> bool:
    """Whether the data has the error already: a loop of ours hears a session that was heard before."""
    return isinstance(data, dict) and cast("dict[str, Any]", data).get("error") == error


def _failed(words: str) -> ToolResultShape:
    return given().tool_result(data={"error": words}, error=words)


def _of_the_world(error: Exception) -> bool:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if not LOST_CONNECTIONS.isdisjoint(names):
        return True
    return isinstance(error, OSError) and not (isinstance(error, OF_FILES) or error.filename is not None)


def _words(error: Exception) -> str:
    """What it says, without the quotes that a ``KeyError`` puts around it."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return said or type(error).__name__
