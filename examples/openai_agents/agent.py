"""An agent of the library openai-agents with one bash tool, for any endpoint that speaks responses or chat completions.

It knows nothing of training. It reads OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL and TASK_PROMPT, works in the
current directory, and stops when the model answers without a tool call or after MAX_TURNS turns. OPENAI_API chooses
the dialect: "responses" or "chat_completions".
"""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI

from agents import Agent, Runner, function_tool, set_default_openai_api, set_default_openai_client, set_tracing_disabled

MAX_TURNS = int(os.environ.get("MAX_TURNS", "8"))
COMMAND_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 3600


@function_tool
async def bash(command: str) -> str:
    """Run a shell command.

    Args:
        command: what to run.
    """
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        return f"no end after {COMMAND_TIMEOUT_S} s"
    return f"{output.decode(errors='replace')}\n(exit code {process.returncode})"


def main() -> None:
    """Run the agent on the task and print its last words."""
    # What is retried is retried by the gateway; a queue may be long.
    set_default_openai_client(AsyncOpenAI(max_retries=0, timeout=REQUEST_TIMEOUT_S), use_for_tracing=False)
    set_default_openai_api("chat_completions" if os.environ.get("OPENAI_API") == "chat_completions" else "responses")
    set_tracing_disabled(True)
    agent = Agent(
        name="worker",
        instructions="Solve the task with bash, in the current directory.",
        model=os.environ["OPENAI_MODEL"],
        tools=[bash],
    )
    print(Runner.run_sync(agent, os.environ["TASK_PROMPT"], max_turns=MAX_TURNS).final_output)


if __name__ == "__main__":
    main()
