"""A smolagents agent with one bash tool, for any endpoint that speaks chat completions.

It knows nothing of training. It reads OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and TASK_PROMPT, works in the
current directory, and stops when the model gives its final answer or after MAX_TURNS turns. AGENT chooses how the
model acts: "code" (it writes Python) or "tool" (it calls tools).
"""

from __future__ import annotations

import os
import subprocess

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

MAX_TURNS = int(os.environ.get("MAX_TURNS", "8"))
COMMAND_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 3600


@tool
def bash(command: str) -> str:
    """Run a shell command.

    Args:
        command: what to run.
    """
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
        return f"no end after {COMMAND_TIMEOUT_S} s"
    return f"{done.stdout.decode(errors='replace')}\n(exit code {done.returncode})"


def main() -> None:
    """Run the agent on the task and print its last words."""
    model = OpenAIModel(
        os.environ["OPENAI_MODEL"],
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        # What is retried is retried by the gateway; a queue may be long.
        client_kwargs={"max_retries": 0, "timeout": REQUEST_TIMEOUT_S},
        retry=False,
    )
    kind = ToolCallingAgent if os.environ.get("AGENT") == "tool" else CodeAgent
    print(kind(tools=[bash], model=model, max_steps=MAX_TURNS).run(os.environ["TASK_PROMPT"]))


if __name__ == "__main__":
    main()
