"""Our traces as OpenEnv records them (``TraceEntry``, openenv 0.10): the way back of :mod:`.openenv_trace`."""

from __future__ import annotations

from typing import Any

from longrein.types import ROLE_WEIGHTS, Call, Message, Trace


def entries_of(trace: Trace) -> list[dict[str, Any]]:
    """One entry for each call that may train: delivered, and of a role that does. Ids and logprobs are exact."""
    return [_entry(trace, call) for call in trace.calls if call.delivered and ROLE_WEIGHTS[call.role] > 0]


def _entry(trace: Trace, call: Call) -> dict[str, Any]:
    prompt, completion = trace.prompt_ids(call).tolist(), call.completion
    sampled = completion.token_ids.size
    masked = [int(may) for may in call.loss_mask] if call.loss_mask is not None else [1] * sampled
    finish = "tool_calls" if call.reply.get("tool_calls") else completion.finish_reason
    return {
        "request": {"messages": _messages(trace, call), "tools": list(trace.line(call)[0].tools) or None},
        "response": {"choices": [{"message": dict(call.reply), "finish_reason": finish}]},
        "prompt_token_ids": prompt,
        "completion_token_ids": completion.token_ids.tolist(),
        # A log-softmax in half precision may round to just above 0, which OpenEnv refuses.
        "per_token_logps": [min(logprob, 0.0) for logprob in completion.logprobs.tolist()],
        "loss_mask": [0] * len(prompt) + masked,
        "metadata": {
            "node_id": f"{trace.session_id}:{call.call_id}",
            "index": call.call_id,
            "role": call.role,
            "min_policy_version": completion.min_policy_version,
            "max_policy_version": completion.max_policy_version,
        },
    }


def _messages(trace: Trace, call: Call) -> list[Message]:
    """The whole conversation that the model was asked to go on with."""
    messages: list[Message] = []
    for earlier in trace.line(call):
        messages += [*earlier.messages, earlier.reply]
    return [dict(message) for message in messages[:-1]]
