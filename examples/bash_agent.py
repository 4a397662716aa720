"""A small agent that owns its loop: chat completions, one bash tool, standard library only.

It knows nothing of training. Give it any OpenAI-compatible endpoint and a task:

    TASK_PROMPT="How many lines has README.md?" OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=key \\
        OPENAI_MODEL=some-model python bash_agent.py

It works in the current directory until the model answers without a tool call, or for MAX_TURNS turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

MAX_TURNS = int(os.environ.get("MAX_TURNS", "8"))
OUTPUT_CHARACTERS = int(os.environ.get("OUTPUT_CHARACTERS", "2000"))
COMMAND_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 600

SYSTEM = "Solve the task with bash, one command at a time."
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "run a shell command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask the model for the next message."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [BASH]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
        return json.load(response)["choices"][0]["message"]


def run_bash(command: str) -> str:
    """Run one command in a fresh shell; what it printed, shortened in the middle."""
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {COMMAND_TIMEOUT_S} s"
    except (OSError, ValueError) as error:  # too long for an argv, or a NUL in it
        return f"cannot run: {error}"
    output = done.stdout.decode(errors="replace").strip()
    if len(output) > OUTPUT_CHARACTERS:
        half = OUTPUT_CHARACTERS // 2
        output = f"{output[:half]}\n[...]\n{output[-half:]}"
    if done.returncode:
        output = f"{output}\nexit code {done.returncode}".strip()
    return output


def answer_call(call: dict[str, Any]) -> dict[str, Any]:
    """The tool message for one tool call, whatever the model wrote into it."""
    function = call["function"]
    try:
        command = json.loads(function["arguments"])["command"]
    except (ValueError, KeyError, TypeError):
        command = None
    if function["name"] != "bash":
        output = f"no tool is named {function['name']}"
    elif not isinstance(command, str):
        output = "arguments must be a JSON object with a string 'command'"
    else:
        output = run_bash(command)
    return {"role": "tool", "tool_call_id": call["id"], "content": output}


def main() -> int:
    """Loop until the model is done; the exit code says nothing of whether the task is solved."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": os.environ["TASK_PROMPT"]},
    ]
    for _ in range(MAX_TURNS):
        try:
            reply = complete(messages)
        except urllib.error.HTTPError as error:
            print(f"endpoint said {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
            return 1
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        if not calls:
            print(reply.get("content") or "")
            return 0
        messages += [answer_call(call) for call in calls]
    print(f"stopped after {MAX_TURNS} turns", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
