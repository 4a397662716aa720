from __future__ import annotations

from typing import Any

import pytest

from longrein.cli.agents import INSTALLED, harness_of, option_names
from longrein.config import HarnessSection
from longrein.errors import ConfigError
from longrein.types import Endpoint, Launch, Task

ENDPOINT = Endpoint(base_url="http://h:1/s", api_key="s", model="m", port=1, context_length=9000, max_tokens=40)


def launch(name: str, **options: Any) -> Launch:
    section = HarnessSection(name=name, options=options)
    return harness_of(section).launch(Task(task_id="t", prompt="p"), ENDPOINT)


@pytest.mark.parametrize("name", INSTALLED)
def test_every_installed_agent_goes_by_its_own_name(name: str) -> None:
    assert harness_of(HarnessSection(name=name)).name == name
    assert "binary" not in option_names(name) and "mode" not in option_names(name)


def test_options_reach_the_harness_in_its_own_types() -> None:
    assert launch("claude_code", tools=["Bash", "Task"]).argv[-1] == "Bash,Task"
    plain, asked = launch("codex"), launch("codex", multi_agent=True)
    assert plain != asked


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("codex", {"compact": 1}, "codex has no option 'compact'; it has: multi_agent, compact_at"),
        ("codex", {"compact_at": "soon"}, "option compact_at of codex: Expected `int`"),
        ("claude_code", {"binary": "/x"}, "no option 'binary'"),
        ("mini_swe_agent", {"mode": "text"}, "no option 'mode'; it has: none"),
        ("command", {"tools": ["a"]}, "a command has no options"),
        ("nonesuch", {}, "unknown harness; known: command, opencode, codex"),
    ],
)
def test_what_a_harness_does_not_take_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("'", ".").replace("|", ".")):
        harness_of(HarnessSection(name=name, argv=("true",), options=options))
