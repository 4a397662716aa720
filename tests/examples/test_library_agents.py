from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longrein.cli.agents import harness_of
from longrein.run_file import load_config
from longrein.types import Endpoint, Task

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDPOINT = Endpoint(base_url="http://h:1/s", api_key="s", model="m", port=1, context_length=1024, max_tokens=40)


@pytest.mark.parametrize("name", ["openai_agents", "smolagents"])
def test_the_run_file_ships_the_script_and_brings_its_interpreter(name: str) -> None:
    """The real runs are in tests/agents; here stands any interpreter for that of the library's environment."""
    config = load_config(EXAMPLES / name / "run.toml", {"harness.python": sys.executable})
    launch = harness_of(config.harness).launch(Task(task_id="t", prompt="p"), ENDPOINT)
    assert launch.files == {".longrein/agent.py": (EXAMPLES / name / "agent.py").read_bytes()}
    assert Path(launch.argv[0]).name == Path(sys.executable).name
