from __future__ import annotations

import http.server
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend
from tests.sandboxes.inside import PYTHON_MOUNTS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / f"sandboxes-{uuid.uuid4().hex}"


@pytest.fixture
def bubblewrap(root: Path) -> BubblewrapBackend:
    return BubblewrapBackend(root=str(root))


@pytest.fixture(params=["bubblewrap", "subprocess"])
def backend(request: pytest.FixtureRequest, root: Path) -> Iterator[SandboxBackend]:
    if request.param == "bubblewrap":
        yield BubblewrapBackend(root=str(root))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield SubprocessBackend(root=str(root))


@pytest.fixture
async def sandbox(bubblewrap: BubblewrapBackend) -> AsyncIterator[Sandbox]:
    made = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS))
    yield made
    await made.close()


@pytest.fixture
def http_port() -> Iterator[int]:
    """A server on the host's loopback that says ``hello`` and gives bodies back."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


class _Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say(b"hello")

    def do_POST(self) -> None:
        self._say(self.rfile.read(int(self.headers["Content-Length"])))

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
