"""What each call was for: the agent's own work, or something beside it; and what says so.

Roles are given when a trace is read, because later calls say what earlier ones were for: a summary is known by the
conversation that goes on from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from longrein.gateway import stitch
from longrein.gateway.nodes import Node
from longrein.gateway.summaries import summarised
from longrein.types import Call, Role


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A role and what speaks for it."""

    role: Role
    evidence: str


def with_roles(nodes: Sequence[Node]) -> tuple[Call, ...]:
    """The calls with their roles.

    The first that applies: the agent's headers name the request; a later conversation goes on from the call's
    summary; the call was asked once, without tools, while the session's other calls have tools, and nothing goes on
    from its answer; the call belongs to a sub-agent's conversation; the very request was answered before; else it is
    the agent's. A call whose tools the agent executed is never auxiliary. Where the evidence is thin the call is the
    agent's: a title that is trained does less harm than an agent that is not.
    """
    session = _Session(nodes)
    judged = [session.judge(node) for node in nodes]
    return tuple(
        msgspec.structs.replace(node.call, role=judgement.role, role_evidence=judgement.evidence)
        for node, judgement in zip(nodes, judged, strict=True)
    )


class _Session:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._works_with_tools = any(node.tools != stitch.NO_TOOLS for node in nodes)
        self._parents = {node.call.parent_id for node in nodes}
        self._textual = _conversations_without_tools(nodes)
        self._answered: dict[bytes, int] = {}
        """What was asked -> the call whose answer arrived first."""
        self._subagents: dict[int, str] = {}
        """Calls of a sub-agent's conversation -> what says so."""
        for node in nodes:
            if node.call.delivered:
                self._answered.setdefault(node.asks, node.call.call_id)
            if evidence := self._of_subagent(node):
                self._subagents[node.call.call_id] = evidence
        self._executed = _executed(nodes)
        self._goes_on_in: dict[int, int] = {}
        """Summary -> the call that starts anew from it."""
        for node in nodes:
            if node.continues is not None and self._is_summary(nodes[node.continues]):
                self._goes_on_in[node.continues] = node.call.call_id

    def judge(self, node: Node) -> Judgement:
        call_id = node.call.call_id
        return (
            self._by_header(node)
            or self._as_summary(node)
            or self._as_toolless(node)
            or (_subagent(self._subagents[call_id]) if call_id in self._subagents else None)
            or self._as_retry(node)
            or Judgement(role="agent", evidence=self._whence(node))
        )

    def _by_header(self, node: Node) -> Judgement | None:
        role = node.caller.role
        if role == "compaction" or (role == "auxiliary" and node.call.call_id not in self._executed):
            return Judgement(role=role, evidence=node.caller.evidence)
        return None

    def _as_summary(self, node: Node) -> Judgement | None:
        later = self._goes_on_in.get(node.call.call_id)
        if later is None:
            return None
        return Judgement(role="compaction", evidence=f"call {later} starts anew from what this one answered")

    def _as_toolless(self, node: Node) -> Judgement | None:
        """Asked without tools where others have them: a title, a probe, a summary; or the last word of the agent."""
        has_tools = node.tools != stitch.NO_TOOLS or node.call.call_id in self._executed
        named = node.caller.role in ("agent", "subagent") or node.call.branch_reason == "subagent"
        if has_tools or not self._works_with_tools or named or not self._is_single(node):
            return None
        evidence = "no tools offered, while the session's other calls have tools"
        if not node.holds_replies:
            return Judgement(role="auxiliary", evidence=evidence)
        if self._goes_on_beside(node):
            return Judgement(role="auxiliary", evidence=f"{evidence}; the conversation goes on without its answer")
        if (anew := self._anew_after(node)) is not None:
            goes_on = f"asked about an earlier conversation; call {anew} starts anew"
            return Judgement(role="compaction", evidence=f"{evidence}; {goes_on}")
        return None

    def _as_retry(self, node: Node) -> Judgement | None:
        first = self._answered.get(node.asks, node.call.call_id)
        if first >= node.call.call_id or node.continues is not None:
            return None
        return Judgement(role="retry", evidence=f"the request of call {first} again, after its answer had arrived")

    def _is_summary(self, node: Node) -> bool:
        """Whether an answer that is quoted elsewhere is a summary: the conversation itself must not go on."""
        is_kept = node.echoed or node.call.call_id in self._parents
        return node.caller.role != "agent" and not is_kept and not self._goes_on_beside(node)

    def _is_single(self, node: Node) -> bool:
        """One question and its answer, and nothing before or after that is a conversation with it."""
        goes_on = node.call.parent_id is not None or node.call.call_id in self._parents or node.echoed
        return not goes_on and _beginning(node) not in self._textual

    def _goes_on_beside(self, node: Node) -> bool:
        """Whether the conversation that a call was asked about goes on later, without the call's answer."""
        reached = {summarised(node, self._nodes).call.call_id} - {node.call.call_id}
        for other in self._nodes:
            if other.call.parent_id in reached and other.asks != node.asks:
                if other.call.call_id > node.call.call_id:
                    return True
                reached.add(other.call.call_id)
        return False

    def _anew_after(self, node: Node) -> int | None:
        """The very next call, if it is the same agent's in a new conversation."""
        later = (other for other in self._nodes[node.call.call_id + 1 :] if other.caller.thread == node.caller.thread)
        following = next(later, None)
        earlier = summarised(node, self._nodes)
        if following is None or following.call.parent_id is not None or following.call.branch_reason == "subagent":
            return None
        is_agents = following.tools == earlier.tools != stitch.NO_TOOLS and following.lead == earlier.lead
        return following.call.call_id if is_agents and following.opening != earlier.opening else None

    def _of_subagent(self, node: Node) -> str:
        """What says that a call is a sub-agent's; children and repetitions are what the call before them was."""
        if node.caller.role == "subagent":
            return node.caller.evidence
        if node.caller.role == "agent":
            return ""
        if node.call.branch_reason == "subagent":
            return "its task is an argument of an earlier call's tool"
        before = self._answered.get(node.asks) if node.call.parent_id is None else node.call.parent_id
        known = (self._subagents.get(at, "") for at in (before, node.continues, node.stem) if at is not None)
        return next(filter(None, known), "")

    def _whence(self, node: Node) -> str:
        if node.caller.role == "agent":
            return node.caller.evidence
        if node.call.parent_id is not None:
            return f"goes on from call {node.call.parent_id}"
        if node.continues in self._goes_on_in:
            return f"goes on from the summary of call {node.continues}"
        return "its own conversation"


Beginning = tuple[str, bytes, bytes]


def _beginning(node: Node) -> Beginning:
    return node.caller.thread, node.lead, node.opening


def _conversations_without_tools(nodes: Sequence[Node]) -> set[Beginning]:
    """How conversations begin in which several things are asked and never with tools, though turns were rewritten."""
    asked: dict[Beginning, set[bytes]] = defaultdict(set)
    for node in nodes:
        asked[_beginning(node)].add(node.asks)
    with_tools = {_beginning(node) for node in nodes if node.tools != stitch.NO_TOOLS}
    return {beginning for beginning, asks in asked.items() if len(asks) > 1} - with_tools


def _subagent(evidence: str) -> Judgement:
    return Judgement(role="subagent", evidence=evidence)


def _executed(nodes: Sequence[Node]) -> set[int]:
    """Calls whose tool calls came back with results."""
    by_id = {ids: node.call.call_id for node in nodes for ids in stitch.call_ids(node.call.reply)}
    executed = {
        by_id[message["tool_call_id"]]
        for node in nodes
        for message in node.call.messages
        if message["role"] == "tool" and message.get("tool_call_id") in by_id
    }
    # An agent may give calls ids of its own: results right after a reply are results of its calls.
    executed |= {
        node.call.parent_id
        for node in nodes
        if node.call.parent_id is not None and any(message["role"] == "tool" for message in node.call.messages)
    }
    return executed
