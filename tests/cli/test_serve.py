"""``longrein serve`` as a user starts and ends it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from longrein.errors import CheckpointError
from longrein.store import read_groups
from tests import tiny


class Server:
    """A running ``longrein serve``."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @property
    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=120) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=120) as answer:
            return json.load(answer)

    def end(self, number: int) -> str:
        """Send a signal; what it said last."""
        self.process.send_signal(number)
        out, _none = self.process.communicate(timeout=120)
        return out


def command(run_file: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "longrein", "serve", str(run_file), *arguments]


@contextmanager
def serving(run_file: Path, *arguments: str) -> Iterator[Server]:
    process = subprocess.Popen(
        command(run_file, "--port", "0", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    timer = threading.Timer(300, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"is served at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line + process.stdout.read()
        timer.cancel()
        yield Server(process, found[1])
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    tiny.save_model(tmp_path / "model")
    path = tmp_path / "run.toml"
    path.write_text('output_dir = "run"\n\n[model]\npath = "model"\ncontext_length = 512\n')
    return path


def test_a_run_file_of_a_model_alone_is_served_until_ctrl_c(run_file: Path) -> None:
    with serving(run_file, "--record") as server:
        body = {"model": str(run_file.parent / "model"), "prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True}
        assert len(server.post("/v1/completions", body)["choices"][0]["token_ids"]) <= 4
        hello = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert server.post("/mine/v1/chat/completions", hello)["object"] == "chat.completion"
        port = server.url.rpartition(":")[2]
        taken = subprocess.run(
            command(run_file, "--port", port), capture_output=True, text=True, timeout=300, check=False
        )
        assert taken.returncode == 1
        assert "choose another port" in taken.stderr
        assert "Traceback" not in taken.stderr
        engine = server.engine
        out = server.end(signal.SIGINT)
        assert server.process.returncode == 0, out
        assert "Traceback" not in out
        assert not engine.is_running()
        with pytest.raises(urllib.error.URLError):
            server.post("/v1/completions", body)
    (group,) = read_groups(run_file.parent / "run" / "served")
    assert group.group_id == "mine"


@pytest.mark.agents
def test_an_engine_that_dies_ends_the_server_with_the_reason(run_file: Path) -> None:
    with serving(run_file) as server:
        server.engine.kill()
        out, _none = server.process.communicate(timeout=120)
        assert server.process.returncode == 1
        assert "went away" in out
        assert "Traceback" not in out


@pytest.mark.agents
def test_sigterm_ends_it_too(run_file: Path) -> None:
    with serving(run_file) as server:
        engine = server.engine
        server.end(signal.SIGTERM)
        assert server.process.returncode == 0
        assert not engine.is_running()


def test_a_model_that_is_not_there_is_named(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from longrein.cli.main import main

    assert main(["serve", str(run_file), "--model", "/nowhere/at/all"]) == 1
    assert "model.path = '/nowhere/at/all'" in capsys.readouterr().err


def test_a_vllm_server_serves_by_itself(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from longrein.cli.main import main

    with run_file.open("a") as file:
        file.write('\n[engine]\nkind = "vllm"\nurls = ["http://127.0.0.1:1"]\n')
    assert main(["serve", str(run_file)]) == 1
    assert "engine.kind = 'vllm'" in capsys.readouterr().err


def test_a_run_without_an_agent_is_not_trained(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from longrein.cli.main import main

    assert main(["train", str(run_file)]) == 1
    assert "give argv, script or name in [harness]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "99999"], "port 99999 is none; give one from 1 to 65535"),
        (["--session-idle-s", "0"], "session_idle_s is 0; give a number of seconds above 0"),
        (["--session-idle-s", "nan"], "session_idle_s is nan"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_the_engine_starts(
    run_file: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from longrein.cli.main import main

    assert main(["serve", str(run_file), *arguments]) == 1
    assert says in capsys.readouterr().err


def test_a_generation_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    from longrein.cli.serve import _eos_token_ids

    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [2, 7]}')
    assert _eos_token_ids(str(tmp_path), 2) == (2, 7)
    for wrong in ("{", '{"eos_token_id": "2"}'):
        file.write_text(wrong)
        with pytest.raises(CheckpointError, match=r"generation_config.json cannot be read.*mend it"):
            _eos_token_ids(str(tmp_path), 2)
