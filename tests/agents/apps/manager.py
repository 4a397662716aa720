"""smolagents: an agent that writes code, without tools on the wire, manages one that calls tools."""

import os
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def look(path: str) -> str:
    """Look at a file.

    Args:
        path: which.
    """
    return f"{path} says 42"


model = OpenAIModel(
    os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    client_kwargs={"max_retries": 0},
    retry=False,
)
helper = ToolCallingAgent(tools=[look], model=model, name="helper", description="looks at files", max_steps=3)
manager = CodeAgent(tools=[], model=model, managed_agents=[helper], max_steps=4)
sys.stdout.write(str(manager.run(os.environ["TASK_PROMPT"])))
