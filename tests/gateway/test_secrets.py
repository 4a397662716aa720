"""A session's secret: unguessable, dead after close, written nowhere; and no session sees another's."""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import logging
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.scripted import Delay, Fault, ScriptedEngine, TurnList
from longrein.errors import EngineError, GatewayRequestError
from longrein.gateway import GatewaySettings
from longrein.gateway.keys import Keys
from longrein.gateway.session import GatewaySession
from longrein.harnesses.command import Command
from longrein.rollout.driver import Attempt, LoopOwningDriver
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sessions.agent import AgentSessionFactory
from longrein.store import RunStore
from longrein.types import RolloutGroup, Task
from tests.gateway.rig import BASH, PATIENCE_S, USER, Rig, renderer, rig, run_bash, say, until
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue


def session(session_id: str) -> GatewaySession:
    engine = ScriptedEngine(TurnList(renderer()), vocab_size=renderer().vocab_size, context_length=64)
    return GatewaySession(session_id, engine, renderer(), GatewaySettings())


def test_secrets_are_long_and_never_the_same() -> None:
    keys = Keys()
    issued = {keys.issue(session(str(number))) for number in range(500)}
    assert len(issued) == 500 and all(len(secret) >= 32 for secret in issued)
    # At each place many characters occur: none is a prefix, a counter or a date.
    assert all(len({secret[at] for secret in issued}) > 30 for at in range(32))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_nothing_but_the_secret_opens_a_session(data: st.DataObject) -> None:
    keys = Keys()
    secret = keys.issue(session("s"))
    near = [secret[:-1], f"{secret}x", secret.swapcase(), secret[::-1], "", f" {secret}", f"{secret}\n"]
    guess = data.draw(st.sampled_from(near) | st.text() | st.text(st.characters(categories=["Cs"])))
    if guess != secret:
        with pytest.raises(GatewayRequestError) as refused:
            keys.authenticate(guess)
        assert refused.value.status == 401 and secret not in str(refused.value)
    assert keys.authenticate(secret).session_id == "s"


def test_every_comparison_takes_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(given)
        return real(known, given)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys()
    secret = keys.issue(session("s"))
    keys.authenticate(secret)
    with pytest.raises(GatewayRequestError):
        keys.authenticate("guess")
    assert compared == [secret.encode(), b"guess"]


@in_every_tongue
async def test_secret_dies_with_its_session(tongue: Tongue) -> None:
    async with rig([Delay(seconds=3600.0), say("late")]) as r:
        asking = asyncio.create_task(tongue.ask(r, "go"))
        await until(lambda: r.engine.requests)
        await r.gateway.close_session("s")
        assert tongue.refuses(await asking)
        url = f"http://127.0.0.1:{r.endpoint.port}{tongue.path}"
        body = json.dumps(tongue.body("go")).encode()
        for place in ({"authorization": f"Bearer {r.endpoint.api_key}"}, {"x-api-key": r.endpoint.api_key}):
            heard = await tongue.post(url, body, place)
            assert heard.status == 401 and tongue.refuses(heard) and r.endpoint.api_key not in heard.text
        heard = await tongue.ask(r, "go")
        assert heard.status == 401 and tongue.refuses(heard) and r.endpoint.api_key not in heard.text
        r.gateway.open_session("s")
        assert (await tongue.ask(r, "go")).status == 401, "the same id has another secret"


@in_every_tongue
async def test_one_session_cannot_touch_anothers_trace(tongue: Tongue) -> None:
    async with rig([say("mine")]) as r:
        other = Rig(r.gateway, r.engine, r.gateway.open_session("other"))
        r.engine.tell("other", [say("theirs"), say("theirs again")])
        assert "mine" in (await tongue.ask(r, "the same words")).text
        before = r.trace()
        assert "theirs" in (await tongue.ask(other, "the same words")).text
        # The path says which session it is, whatever the headers say.
        url = f"{other.endpoint.base_url}{tongue.path}"
        heard = await tongue.post(url, json.dumps(tongue.body("and now")).encode(), r.auth)
        assert "theirs again" in heard.text
        await tongue.post(url, b"{nonsense", r.auth)
        assert r.trace() == before
        theirs = r.gateway.trace("other")
        assert [call.reply["content"] for call in theirs.calls] == ["theirs", "theirs again"]
        await r.gateway.close_session("other")
        assert r.trace() == before and "refused" not in r.gateway._keys.session("s").counters


async def test_anothers_call_ids_lead_nowhere() -> None:
    async with rig([run_bash("cat treasure")]) as r:
        other = Rig(r.gateway, r.engine, r.gateway.open_session("other"))
        r.engine.tell("other", [say("nothing")])
        chat = TONGUES["chat"]
        reply = (await chat.ask(r, "go", tools=[BASH])).json()["choices"][0]["message"]
        tool = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "gold"}
        reply["tool_calls"][0]["function"] = {"name": "x", "arguments": "{}"}
        assert (await chat.ask(other, "", messages=[USER, reply, tool], tools=[BASH])).status == 200
        (call,) = r.gateway.trace("other").calls
        assert call.parent_id is None and call.branch_reason == "first"
        assert "treasure" not in renderer().decode(r.gateway.trace("other").prompt_ids(call))


async def raw(port: int, data: bytes) -> bytes:
    """Without any client library: those write down what they send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


def request(secret: str, path: str, body: bytes, head: str = "") -> bytes:
    line = f"POST /{secret}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n{head}Connection: close\r\n"
    return f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Broken(TurnList):
    async def reply(self, request: object) -> None:  # type: ignore[override]
        raise KeyError("a bug of ours")


async def test_secret_is_in_no_log_no_error_and_no_repr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    answers: list[bytes] = []
    reprs = io.StringIO()
    async with rig([say("fine")]) as r:
        ends = [r.gateway.open_session(name) for name in ("failing", "buggy", "slow")]
        r.engine.tell("failing", [Fault(error=EngineError("gone"))])
        r.engine.tell("slow", [Delay(seconds=3600.0), say("late")])
        secrets = [r.endpoint.api_key, *[end.api_key for end in ends]]
        for tongue in TONGUES.values():
            body = json.dumps(tongue.body("go")).encode()
            for secret in secrets[:2]:
                answers.append(await raw(r.endpoint.port, request(secret, tongue.path, body)))
            answers.append(await raw(r.endpoint.port, request(secrets[0], tongue.path, b"{nonsense")))
            answers.append(await raw(r.endpoint.port, request(secrets[0], f"{tongue.path}/nowhere", body)))
        answers.append(await raw(r.endpoint.port, f"GET /{secrets[0]}/\xff HTTP/1.1\r\n\r\n".encode("latin-1")))
        answers.append(await raw(r.endpoint.port, request(secrets[0], "/v1/models", b"", "x: " + "y" * 70_000)))
        answers.append(await raw(r.endpoint.port, request(secrets[0], "/v1/models", b"", "Upgrade: websocket\r\n")))
        body = json.dumps(TONGUES["chat"].body("go")).encode()
        slow = asyncio.create_task(raw(r.endpoint.port, request(secrets[3], "/v1/chat/completions", body)))
        await until(lambda: r.engine.requests[-1].conversation_id == "slow")
        for thing in (r.gateway, r.endpoint, *ends, r.gateway._keys.session("s"), r.gateway._keys, slow, r.trace()):
            print(repr(thing), file=reprs)
        r.engine._script = Broken(renderer())
        answers.append(await raw(r.endpoint.port, request(secrets[2], "/v1/chat/completions", body)))
        for name in ("failing", "slow", "s"):
            print(repr(await r.gateway.close_session(name)), file=reprs)
        with pytest.raises(KeyError) as bug:
            await r.gateway.close_session("buggy")
        print(repr(bug.value), bug.getrepr(style="short"), file=reprs)
        answers.append(await slow)
        answers += [await raw(r.endpoint.port, request(secret, "/v1/messages", body)) for secret in secrets]
    assert b" 500 " in b"".join(answers) and b" 401 " in b"".join(answers) and b" 503 " in b"".join(answers)
    captured = capfd.readouterr()
    written = f"{caplog.text}{captured.out}{captured.err}{reprs.getvalue()}{b''.join(answers).decode('latin-1')}"
    assert "a bug of ours" in caplog.text
    for secret in secrets:
        at = written.find(secret)
        assert at < 0, written[max(0, at - 300) : at + 100]


TELLS = b"""
import os, sys, urllib.request
body = b'{"messages": [{"role": "user", "content": "go"}]}'
if os.environ["TASK_PROMPT"] == "call":
    urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=body).read()
print("cannot reach", os.environ["OPENAI_BASE_URL"], "with", os.environ["OPENAI_API_KEY"])
sys.exit(3)
"""


async def test_secret_is_in_no_file_of_the_run_though_the_agent_prints_it(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_bytes(TELLS)
    backend = BubblewrapBackend(root=str(tmp_path / f"sandboxes-{tmp_path.name}"))
    factory = AgentSessionFactory(harness=Command.python_script(str(script)), backend=backend)
    task = Task(task_id="t", prompt="p", tests={"test.sh": b"cat /logs/nothing"})
    issued: list[str] = []

    class Watched:
        async def create(self, **options: object) -> object:
            issued.append(options["endpoint"].api_key)  # type: ignore[attr-defined]
            return await factory.create(**options)  # type: ignore[arg-type]

    async with rig([]) as r:
        r.engine.tell("call", [say("one")])
        driver = LoopOwningDriver(r.gateway, Watched(), max_retries=0)  # type: ignore[arg-type]
        tasks = [msgspec.structs.replace(task, prompt=prompt) for prompt in ("call", "keep silent")]
        attempts = [Attempt(rollout_id=one.prompt, group_id="g", task=one, seed=0) for one in tasks]
        rollouts = tuple([await driver.run(attempt) for attempt in attempts])
    assert all(rollout.failure is not None for rollout in rollouts)
    RunStore(tmp_path / "run").append(RolloutGroup(group_id="g", task=task, rollouts=rollouts))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    written = repr(rollouts) + "".join(str(pq.read_table(path).to_pylist()) for path in files)
    assert files and len(issued) == 2 and "/<key>/v1 with <key>" in written
    assert not [secret for secret in issued if secret in written]
