from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrein.errors import ConfigError
from longrein.harnesses.command import Command
from longrein.types import Endpoint, Mount, Task

ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:4321/s3cret",
    api_key="s3cret",
    model="policy",
    port=4321,
    context_length=8192,
    max_tokens=256,
)


def task(prompt: str = "do it") -> Task:
    return Task(task_id="t", prompt=prompt)


def test_placeholders_and_the_usual_environment() -> None:
    command = Command(
        argv=("agent", "--url={base_url}/v1", "--key", "{api_key}", "{prompt}", "{other}"), env={"MODEL": "x/{model}"}
    )
    launch = command.launch(task("say {model} and {base_url}"), ENDPOINT)
    assert launch.argv == (
        *("agent", "--url=http://127.0.0.1:4321/s3cret/v1", "--key", "s3cret"),
        *("say {model} and {base_url}", "{other}"),
    )
    assert launch.env == {
        "OPENAI_BASE_URL": "http://127.0.0.1:4321/s3cret/v1",
        "OPENAI_API_KEY": "s3cret",
        "OPENAI_MODEL": "policy",
        "TASK_PROMPT": "say {model} and {base_url}",
        "MODEL": "x/policy",
    }
    assert launch.stdin == b""


@given(prompt=st.text())
def test_a_prompt_arrives_as_it_is(prompt: str) -> None:
    launch = Command(argv=("a", "{prompt}", "p={prompt}")).launch(task(prompt), ENDPOINT)
    assert launch.argv == ("a", prompt, f"p={prompt}")


def test_the_users_environment_wins() -> None:
    assert Command(argv=("a",), env={"OPENAI_MODEL": "mine"}).launch(task(), ENDPOINT).env["OPENAI_MODEL"] == "mine"


def test_a_python_script_travels_with_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("print('hi')")
    command = Command.python_script(str(tmp_path / "agent.py"), env={"A": "b"}, args=("--fast",))
    command.check()
    launch = command.launch(task(), ENDPOINT)
    interpreter, unbuffered, script, fast = launch.argv
    assert (unbuffered, script, fast) == ("-u", "$HOME/.longrein/agent.py", "--fast")
    assert launch.files == {".longrein/agent.py": b"print('hi')"}
    assert launch.env["A"] == "b"
    prefix = str(Path(sys.base_prefix).resolve())
    assert interpreter.startswith(prefix)
    assert launch.readonly_mounts in ((), (Mount(source=prefix, target=prefix),))
    assert pickle.loads(pickle.dumps(command)).launch(task(), ENDPOINT) == launch


def test_a_python_script_may_bring_a_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "pyvenv.cfg").write_text("home = /opt/base/bin\n")
    (tmp_path / "link").symlink_to(environment)
    command = Command.python_script(str(tmp_path / "agent.py"), python=str(tmp_path / "link" / "bin" / "python"))
    launch = command.launch(task(), ENDPOINT)
    assert launch.argv == (str(environment / "bin" / "python"), "-u", "$HOME/.longrein/agent.py")
    assert [mount.target for mount in launch.readonly_mounts] == [str(environment), "/opt/base"]
    with pytest.raises(ConfigError, match="/opt/base"):
        command.check()


def test_what_cannot_work_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no/agent\.py"):
        Command.python_script(str(tmp_path / "no" / "agent.py"))
    with pytest.raises(ConfigError, match="no-such-agent"):
        Command(argv=("no-such-agent",)).check()
    with pytest.raises(ConfigError, match="empty"):
        Command(argv=()).check()
    with pytest.raises(ConfigError, match="/nowhere"):
        Command(argv=("sh",), mounts=(Mount(source="/nowhere", target="/opt/x"),)).check()
    Command(argv=("sh", "-c", "true")).check()
