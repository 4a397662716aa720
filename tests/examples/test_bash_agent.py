"""The example agent as a real process against an endpoint that says what the test tells it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).parents[2] / "examples/bash_agent.py"
DONE = {"role": "assistant", "content": "Done."}


def call(arguments: str, name: str = "bash", call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*commands: str) -> dict[str, Any]:
    """One assistant turn that runs these commands."""
    made = [call(json.dumps({"command": command}), call_id=f"c{n}") for n, command in enumerate(commands)]
    return {"role": "assistant", "content": None, "tool_calls": made}


class Endpoint:
    """Answers with the given messages in turn, and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append({**body, "path": self.path})
                endpoint.keys.append(self.headers["Authorization"])
                status = 200 if endpoint.replies else 400
                message = endpoint.replies.pop(0) if endpoint.replies else None
                answer = json.dumps({"choices": [{"message": message}]} if message else {"error": "too long"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    yield served
    served.close()


def run_agent(endpoint: Endpoint, workdir: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "TASK_PROMPT": "Do it.",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{endpoint.server.server_port}/secret/v1",
        "OPENAI_API_KEY": "key",
        "OPENAI_MODEL": "m",
        **env,
    }
    return subprocess.run(
        [sys.executable, AGENT], cwd=workdir, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def tool_outputs(endpoint: Endpoint) -> list[str]:
    return [message["content"] for message in endpoint.asked[-1]["messages"] if message["role"] == "tool"]


def test_it_works_over_several_turns_and_stops_when_the_model_does(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("plum\n")
    endpoint.replies = [calls("cat note.txt"), calls("echo plum > out.txt"), DONE]
    done = run_agent(endpoint, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Done.\n", "")
    assert (tmp_path / "out.txt").read_text() == "plum\n"
    assert [len(asked["messages"]) for asked in endpoint.asked] == [2, 4, 6]
    assert endpoint.asked[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c0", "content": "plum"}
    assert endpoint.asked[0]["path"] == "/secret/v1/chat/completions"
    assert [tool["function"]["name"] for tool in endpoint.asked[0]["tools"]] == ["bash"]
    assert set(endpoint.keys) == {"Bearer key"}


def test_every_request_extends_the_one_before(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.replies = [calls("true"), calls("false"), DONE]
    run_agent(endpoint, tmp_path)
    histories = [asked["messages"] for asked in endpoint.asked]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(histories))


def test_it_stops_after_the_turns_it_has(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.replies = [calls("true")] * 9
    done = run_agent(endpoint, tmp_path, MAX_TURNS="3")
    assert (done.returncode, len(endpoint.asked)) == (0, 3)
    assert "stopped after 3 turns" in done.stderr


def test_parallel_calls_are_answered_in_order(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.replies = [calls("echo 1", "echo 2"), DONE]
    run_agent(endpoint, tmp_path)
    assert tool_outputs(endpoint) == ["1", "2"]


def test_output_is_bounded_and_failures_are_told(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.replies = [calls("seq 1 100000"), calls("echo no >&2; exit 3"), calls("printf '\\377'"), DONE]
    run_agent(endpoint, tmp_path, OUTPUT_CHARACTERS="100")
    long, failed, binary = tool_outputs(endpoint)
    assert len(long) < 120
    assert long.startswith("1\n2\n")
    assert long.endswith("100000")
    assert failed == "no\nexit code 3"
    assert binary == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("made", "output"),
    [
        (call("{not json"), "arguments must be"),
        (call("[]"), "arguments must be"),
        (call('{"command": 3}'), "arguments must be"),
        (call('{"command": "true"}', name="python"), "no tool is named python"),
        (call('{"command": "a\\u0000b"}'), "cannot run"),
    ],
)
def test_whatever_the_model_writes_is_answered(
    endpoint: Endpoint, tmp_path: Path, made: dict[str, Any], output: str
) -> None:
    endpoint.replies = [{"role": "assistant", "content": "", "tool_calls": [made]}, DONE]
    assert run_agent(endpoint, tmp_path).returncode == 0
    assert output in tool_outputs(endpoint)[0]


def test_a_refusal_of_the_endpoint_is_reported(endpoint: Endpoint, tmp_path: Path) -> None:
    done = run_agent(endpoint, tmp_path)
    assert done.returncode == 1
    assert "endpoint said 400" in done.stderr
    assert "too long" in done.stderr


def test_it_is_small_and_uses_the_standard_library_only() -> None:
    lines = AGENT.read_text().splitlines()
    assert len(lines) <= 120
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names
