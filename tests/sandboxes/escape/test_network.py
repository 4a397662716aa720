"""Reach something besides the gateway: other ports, sockets of the host, the network, the hypervisor."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from tests.gateway.rig import rig, say
from tests.sandboxes.escape.attack import attempt, wins

CONNECT = """
    sock = socket.socket(socket.AF_UNIX if os.environ["TARGET"].startswith(("/", "@")) else socket.AF_INET)
    sock.settimeout(3)
    target = os.environ["TARGET"]
    if target.startswith("@"):
        sock.connect("\\0" + target[1:])
    elif target.startswith("/"):
        sock.connect(target)
    else:
        host, _, port = target.rpartition(":")
        sock.connect((host, int(port)))
    return True
"""
ROUTED = """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((os.environ["TARGET"], 80))  # sends nothing: it asks the kernel for a way
    return True
"""
VSOCK = """
    socket.socket(40, socket.SOCK_STREAM).close()
    return True
"""
CALL_WITH_KEYS = """
    import json, urllib.request
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for key in os.environ["KEYS"].split(","):
        for path in (f"/{key}/v1/chat/completions", "/v1/chat/completions"):
            request = urllib.request.Request("http://127.0.0.1:" + os.environ["PORT"] + path, method="POST")
            request.add_header("Authorization", "Bearer " + key)
            request.add_header("Content-Type", "application/json")
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}]}).encode()
            try:
                opener.open(request, data=body, timeout=60).read()
                return True
            except urllib.error.HTTPError as error:
                if error.code not in (401, 403, 404):
                    raise
    return False
"""
STEAL_A_KEY = (
    """
    marker = b"SIBLING_" + b"KEY="
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            environ = open(path, "rb").read()
        except OSError:
            continue
        if marker in environ:
            os.environ["KEYS"] = environ.partition(marker)[2].partition(b"\\0")[0].decode()
            break
    else:
        return False
"""
    + CALL_WITH_KEYS
)


@pytest.fixture(params=["loopback", "abstract", "path"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "loopback":
        server = socket.create_server(("127.0.0.1", 0))
        target = f"127.0.0.1:{server.getsockname()[1]}"
    else:
        server = socket.socket(socket.AF_UNIX)
        name = f"longrein-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "s")
        target = f"@{name}" if request.param == "abstract" else name
        server.bind(f"\0{name}" if request.param == "abstract" else name)
        server.listen()
    yield target
    server.close()


async def test_listeners_of_the_host(plain: SandboxBackend, walled: SandboxBackend, listener: str) -> None:
    """A registry, the engine, another session's gateway, a Docker socket."""
    assert await wins(plain, CONNECT, env={"TARGET": listener})
    assert not await wins(walled, CONNECT, env={"TARGET": listener})


@pytest.mark.parametrize("address", ["1.1.1.1", "169.254.169.254", "10.0.0.1"], ids=["world", "cloud", "neighbour"])
async def test_the_network(plain: SandboxBackend, walled: SandboxBackend, address: str) -> None:
    env = {"TARGET": address}
    assert not await wins(walled, ROUTED, env=env)
    if not await wins(plain, ROUTED, env=env):
        pytest.skip(f"the control fails: this machine itself has no way to {address}")


async def test_the_hypervisor(plain: SandboxBackend, walled: SandboxBackend) -> None:
    assert not await wins(walled, VSOCK)
    if not await wins(plain, VSOCK):
        pytest.skip("the control fails: this kernel has no vsock")


async def test_the_gateway_with_a_guessed_key(plain: SandboxBackend, walled: SandboxBackend) -> None:
    """The gateway itself refuses, so the control is the session's own key."""
    guesses = ["", "s", "sibling", "admin", "0" * 43, "../s", "%2e%2e", "k" * 5000]
    async with rig([say("hello")] * 4) as ours:
        port = ours.endpoint.port
        for backend in (plain, walled):
            for keys, won in ((",".join(guesses), b"lost\n"), (ours.endpoint.api_key, b"won\n")):
                result = await attempt(backend, CALL_WITH_KEYS, env={"KEYS": keys, "PORT": str(port)}, ports=(port,))
                assert result.stdout == won, result.stderr
        assert len(ours.trace().calls) == 2, "the two calls with the key, and nobody else's"


@pytest.mark.parametrize("kind", ["plain", "walled"])
async def test_the_gateway_with_a_siblings_key(request: pytest.FixtureRequest, kind: str) -> None:
    backend: SandboxBackend = request.getfixturevalue(kind)
    async with rig([say("hello")] * 2) as ours:
        sibling = ours.gateway.open_session("sibling")
        place = await backend.create(SandboxSpec())
        running = await place.start(("sleep", "600"), env={"SIBLING_KEY": sibling.api_key})
        try:
            port = ours.endpoint.port
            result = await attempt(backend, STEAL_A_KEY, env={"KEYS": "", "PORT": str(port)}, ports=(port,))
            assert result.stdout == (b"won\n" if kind == "plain" else b"lost\n"), result.stderr
            assert len(ours.gateway.trace("sibling").calls) == (1 if kind == "plain" else 0)
        finally:
            await running.kill()
            await place.close()
