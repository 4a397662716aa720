"""Every noun, in data-flow order: task, session, trace, rows, step.

What travels between parts is a frozen ``msgspec.Struct``. Tokens are numpy arrays from the moment they are
captured: ``int32`` ids, ``float32`` logprobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
Message = dict[str, Any]
"""One chat message in OpenAI form: ``role``, ``content``, ``tool_calls``, ``tool_call_id``, ``reasoning_content``."""
Tool = dict[str, Any]
"""One tool in OpenAI form: ``{"type": "function", "function": {name, description, parameters}}``."""

FinishReason = Literal["stop", "length"]
Role = Literal["agent", "subagent", "compaction", "auxiliary", "retry"]
ROLE_WEIGHTS: Mapping[Role, float] = MappingProxyType(
    {"agent": 1.0, "subagent": 1.0, "retry": 1.0, "compaction": 0.0, "auxiliary": 0.0}
)
"""What multiplies the loss of each role's tokens, unless a run says otherwise; 0 leaves them out."""
AdvantageName = Literal["group_normalised", "group_centred", "leave_one_out", "batch_normalised"]
"""How the rewards of a group become advantages, see :mod:`longrein.rollout.advantage`."""
VerdictName = Literal["reward", "exit_code", "junit"]
"""What a task's hidden test leaves as its verdict, see :mod:`longrein.tasks.verifier`."""
StatusName = Literal["completed", "truncated", "timed_out", "failed"]
FailureKind = Literal["sandbox", "harness", "engine", "verifier", "session", "no_calls"]
FindingKind = Literal[
    "work_left_out",
    "outside_symlink",
    "special_file",
    "test_shadowing",
    "processes_left",
    "memory_limit",
    "pids_limit",
    "disk_limit",
    "git_history",
]
"""What may be found on a rollout, see docs/sandboxes.md."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is asked, the files it finds, and what only the verifier and the oracle may see."""

    task_id: str
    prompt: str
    files: dict[str, bytes] = {}
    """Relative path in the work directory -> content."""
    tests: dict[str, bytes] = {}
    """Relative path under ``/tests`` -> content. Enters only the verifier's sandbox."""
    oracle: tuple[str, ...] = ()
    """Shell commands that solve the task, one a turn. Never shown to the agent."""
    verdict: VerdictName = "reward"
    agent_timeout_s: float = 300.0
    verifier_timeout_s: float = 60.0
    metadata: dict[str, Any] = {}


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one completion is sampled. ``top_k=0``, ``top_p=1``, ``min_p=0`` mean: no truncation."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine sampled. ``logprobs`` are of the distribution that was sampled from (after temperature)."""

    token_ids: I32
    """Shape ``[n]``, the stop token included when one ended it."""
    logprobs: F32
    """Shape ``[n]``, natural log."""
    finish_reason: FinishReason
    min_policy_version: int
    max_policy_version: int
    prefill_tokens: int = 0
    """Prompt tokens that the engine really computed (the rest came from its cache)."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock of one call, in seconds since the epoch and seconds."""

    started_at_s: float
    generate_s: float = 0.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the agent and the completion that answered it.

    ``prompt_delta`` holds only what this call adds to its parent's prompt + completion (the whole prompt for a root).
    """

    call_id: int
    """Position in the trace, from 0, in order of completion."""
    parent_id: int | None
    """The call whose prompt + completion this prompt extends; ``None`` starts a branch."""
    role: Role = "agent"
    role_evidence: str = ""
    """What says so, in words."""
    branch_reason: str = ""
    """Why a root is a root; empty for others.

    ``first``; ``repeated`` (a request that was answered before); ``subagent``; ``compaction`` (it goes on from a
    summary); ``tools_changed``, ``system_changed``, ``history_changed`` (an earlier conversation, but for these);
    ``new_conversation``; ``not_bridgeable`` (the template cannot extend the parent's tokens).
    """
    trains: bool = True
    """``train_turn_fn`` did not turn it down."""
    loss_mask: NDArray[np.bool_] | None = None
    """Which sampled tokens may train, shape ``[n]``, where a recording of somebody else's says so; else all may."""
    prompt_delta: I32
    completion: Completion
    delivered: bool
    """The agent received the whole answer."""
    messages: tuple[Message, ...]
    """Messages that this call adds to its parent's (all of them for a root), normalised."""
    tools: tuple[Tool, ...] = ()
    """Tools of a root; children share their root's."""
    reply: Message
    """The assistant message as it was given to the agent."""
    dialect: str = "chat"
    asked: dict[str, Any] = {}
    """Sampling parameters the agent had asked for (the run's own were used)."""
    timing: Timing


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one session, as a tree."""

    session_id: str
    calls: tuple[Call, ...]

    def prompt_ids(self, call: Call) -> I32:
        """The exact prompt the engine saw for ``call``, shape ``[n]`` int32."""
        parts: list[I32] = [call.prompt_delta]
        parent_id = call.parent_id
        while parent_id is not None:
            parent = self.calls[parent_id]
            parts += [parent.completion.token_ids, parent.prompt_delta]
            parent_id = parent.parent_id
        return np.concatenate(parts[::-1]) if len(parts) > 1 else parts[0]

    def paths(self) -> Iterator[tuple[Call, ...]]:
        """Root-to-leaf paths, in order of their leaves' call ids."""
        inner = {call.parent_id for call in self.calls}
        for leaf in self.calls:
            if leaf.call_id in inner:
                continue
            yield self.line(leaf)

    def line(self, call: Call) -> tuple[Call, ...]:
        """A call and its ancestors, the root first."""
        line = [call]
        while line[-1].parent_id is not None:
            line.append(self.calls[line[-1].parent_id])
        return tuple(line[::-1])

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens sampled over all calls of every role."""
        return sum(call.completion.token_ids.size for call in self.calls)

    @property
    def delivered_token_fraction(self) -> float:
        """Sampled tokens that reached the agent, over all sampled tokens; 1.0 for an empty trace."""
        delivered = sum(call.completion.token_ids.size for call in self.calls if call.delivered)
        return delivered / self.sampled_tokens if self.sampled_tokens else 1.0


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent finds the model: one secret, as API key and as path prefix."""

    base_url: str
    """``http://127.0.0.1:<port>/<secret>`` without ``/v1``."""
    api_key: str
    model: str
    port: int
    """Loopback port that the sandbox must let through."""
    context_length: int
    max_tokens: int

    def __repr__(self) -> str:
        """Without the secret, since reprs end up in logs."""
        return f"Endpoint(port={self.port}, model={self.model!r})"


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A read-only host folder or file that the sandbox shows at ``target``."""

    source: str
    target: str


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an agent: pure data, made without a process."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: dict[str, bytes] = {}
    """Written before the start. Relative paths are in HOME."""
    readonly_mounts: tuple[Mount, ...] = ()
    stdin: bytes = b""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An infrastructure fault that makes a rollout unscorable."""

    kind: FailureKind
    message: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent did, and that a reader of its reward should know. Never a verdict by itself."""

    kind: FindingKind
    detail: str
    """What exactly, in words."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's verdict. ``reward=None`` means *unscorable*, which is never 0."""

    reward: float | None
    metrics: dict[str, float] = {}
    reason: str = ""
    """Why ``reward`` is ``None``; empty otherwise."""
    findings: tuple[Finding, ...] = ()
    """What was found on the work while it was judged."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One finished attempt at a task."""

    rollout_id: str
    group_id: str
    task_id: str
    seed: int
    status: StatusName
    trace: Trace
    score: Score
    failure: Failure | None = None
    metrics: dict[str, float] = {}
    findings: tuple[Finding, ...] = ()
    """On the agent's run and on its work, together."""


class RolloutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """``num_generations`` rollouts of one task, with the rewards and advantages among them."""

    group_id: str
    task: Task
    rollouts: tuple[Rollout, ...]
    rewards: tuple[float | None, ...] = ()
    """One a rollout, reward functions included."""
    advantages: tuple[float, ...] = ()
    """One a rollout; 0.0 where the reward is ``None``."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One training sequence. All arrays have shape ``[n]``."""

    rollout_id: str
    group_id: str
    token_ids: I32
    loss_mask: NDArray[np.bool_]
    """True where the token was sampled and trains in this row."""
    logprobs: F32
    """The sampler's logprob where ``loss_mask``; 0 elsewhere."""
    advantage: float
    weight: float = 1.0
    """Multiplies every trained token of the row."""
    min_policy_version: int = 0
    max_policy_version: int = 0
