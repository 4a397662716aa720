"""openai-agents: a worker hands over to a writer without tools; then the same talk goes on with the worker."""

import os
import sys

from openai import AsyncOpenAI

from agents import Agent, Runner, function_tool, set_default_openai_api, set_default_openai_client, set_tracing_disabled


@function_tool
def look(path: str) -> str:
    """Look at a file."""
    return f"{path} says 42"


set_default_openai_client(AsyncOpenAI(max_retries=0), use_for_tracing=False)
set_default_openai_api("chat_completions" if os.environ["OPENAI_API"] == "chat_completions" else "responses")
set_tracing_disabled(True)
model = os.environ["OPENAI_MODEL"]
writer = Agent(name="writer", instructions="write", model=model)
worker = Agent(name="worker", instructions="work", model=model, tools=[look], handoffs=[writer])
written = Runner.run_sync(worker, os.environ["TASK_PROMPT"])
talk = [*written.to_input_list(), {"role": "user", "content": "Now check it."}]
sys.stdout.write(str(Runner.run_sync(worker, talk).final_output))
