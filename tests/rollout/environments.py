"""Environments of OpenEnv's shape as users write them, without OpenEnv; picklable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longrein.sessions.openenv_types import ToolResult, VerifyResult
from longrein.types import Message


class Tool:
    """As MCP describes one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.description = f"to {name}"
        self.input_schema = {"type": "object", "properties": {"number": {"type": "integer"}}}


class CountingFactory:
    """Episodes in which numbers are added up; ``create`` has OpenEnv's signature."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.sessions: list[CountingSession] = []

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> CountingSession:
        session = CountingSession(task, seed, episode_id, **self.changes)
        self.sessions.append(session)
        return session


class CountingSession:
    """Has the tools ``add``, ``finish``, ``refuse``, ``fall`` and ``nap``. The reward is the sum."""

    def __init__(
        self, task: Any, seed: int | None, episode_id: str | None, *, nap_s: float = 0.0, reward: Any = "sum"
    ) -> None:
        self.task = task
        self.seed = seed
        self.episode_id = episode_id
        self.nap_s = nap_s
        self.reward = reward
        self.sum = 0
        self.closed = 0
        self.transcript: list[Message] = []
        self.final_state: Any = None
        self.threads: set[int] = set()
        self.napping = threading.Event()
        self.awake = threading.Event()

    def initial_messages(self) -> list[Message]:
        self.threads.add(threading.get_ident())
        return [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": [{"type": "text", "text": str(self.task["prompt"])}]},
        ]

    def list_tools(self) -> list[Tool]:
        return [Tool(name) for name in ("add", "finish", "refuse", "fall", "nap")]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.threads.add(threading.get_ident())
        match name:
            case "add":
                self.sum += arguments["number"]
                return ToolResult(data={"sum": self.sum})
            case "finish":
                return ToolResult(data="finished", done=True)
            case "refuse":
                return ToolResult(data={"partly": 1}, error="not today")
            case "fall":
                raise ConnectionResetError("the server is gone")
            case "nap":
                self.napping.set()
                self.awake.wait(self.nap_s)
                return ToolResult(data=None)
            case _:
                raise KeyError(f"Unknown tool: {name}")

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        self.threads.add(threading.get_ident())
        self.transcript, self.final_state = transcript, final_state
        if isinstance(self.reward, Exception):
            raise self.reward
        reward = float(self.sum) if self.reward == "sum" else self.reward
        return VerifyResult(env_reward=reward, done=True, metrics={"steps": 3, "label": "text"})

    def close(self) -> None:
        self.closed += 1


class RecordedFactory:
    """Sessions whose agents ran elsewhere: what their recorder hands over is given."""

    def __init__(self, fetch: str, trace: Any, reward: float | None = 1.0, **changes: Any) -> None:
        self.fetch = fetch
        self.trace = trace
        self.reward = reward
        self.changes = changes
        self.sessions: list[RecordedSession] = []

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> RecordedSession:
        session = RecordedSession(self.reward, **self.changes)
        setattr(session, self.fetch, lambda: self.trace() if callable(self.trace) else self.trace)
        self.sessions.append(session)
        return session


class RecordedSession:
    def __init__(self, reward: float | None, *, wait: Callable[[float | None], int] = lambda _: 0) -> None:
        self.reward = reward
        self.wait = wait
        self.transcript: list[Message] | None = None
        self.closed = 0

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        return self.wait(timeout_s)

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        self.transcript = transcript
        return VerifyResult(env_reward=self.reward)

    def close(self) -> None:
        self.closed += 1


class WritingFactory:
    """For another process: writes down what ``create`` got, and how its sessions ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> WritingSession:
        (self.folder / f"{episode_id}.created").write_text(f"{seed} {sorted(task)} {task['target']}")
        return WritingSession(task, seed, episode_id, self.folder)


class WritingSession(CountingSession):
    def __init__(self, task: Any, seed: int | None, episode_id: str | None, folder: Path) -> None:
        super().__init__(task, seed, episode_id)
        self.folder = folder

    def close(self) -> None:
        super().close()
        (self.folder / f"{self.episode_id}.closed").touch()


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> Message:
    """An assistant's turn with tool calls, for a script."""
    import json

    listed = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(wanted)
    ]
    return {"role": "assistant", "content": text, "tool_calls": listed}


def add(number: int) -> tuple[str, dict[str, Any]]:
    return ("add", {"number": number})


def roles(messages: Sequence[Message]) -> list[str]:
    return [message["role"] for message in messages]
