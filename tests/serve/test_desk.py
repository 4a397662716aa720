"""Named sessions that end: by their user, for want of use, with the server, and several of these at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway.session import SessionRecord
from longrein.gateway.settings import GatewaySettings
from longrein.serve.desk import Desk
from tests.gateway.rig import renderer, until

REQUEST: Any = None
"""Named sessions do not look at what was asked for."""


class Recorder:
    """Waits to be told before it keeps ``slow``."""

    def __init__(self, slow: str) -> None:
        self.go_on = asyncio.Event()
        self.began = asyncio.Event()
        self.kept: list[str] = []
        self._slow = slow

    async def keep(self, session_id: str, record: SessionRecord) -> str:
        if session_id == self._slow:
            self.began.set()
            await self.go_on.wait()
        self.kept.append(session_id)
        return session_id


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(slow="a")


async def desk_of(recorder: Recorder, *names: str, idle_s: float = 3600.0) -> Desk:
    engine = ScriptedEngine(TurnList(renderer()), vocab_size=1000, context_length=1000)
    desk = Desk(engine, renderer(), GatewaySettings(), recorder, idle_s)
    for name in names:
        async with desk.session(name, REQUEST):
            pass
    return desk


async def test_a_session_that_its_user_closes_while_another_is_closed_for_want_of_use(recorder: Recorder) -> None:
    desk = await desk_of(recorder, "a", "b", idle_s=0.01)
    closer = asyncio.create_task(desk.close_idle())
    await recorder.began.wait()
    await desk.close("b")
    async with desk.session("b", REQUEST) as again:
        recorder.go_on.set()
        await until(lambda: "a" in recorder.kept)
        await asyncio.sleep(0.1)
        assert not closer.done()
        assert not again._closed, "it is another one, and in use"
    closer.cancel()


async def test_a_session_is_recorded_though_whoever_closed_it_has_gone(recorder: Recorder) -> None:
    desk = await desk_of(recorder, "a")
    closing = asyncio.create_task(desk.close("a"))
    await recorder.began.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    ended = asyncio.create_task(desk.close_all())
    await asyncio.sleep(0)
    assert not ended.done(), "the end waits for it"
    recorder.go_on.set()
    await ended
    assert recorder.kept == ["a"]


async def test_a_bug_in_one_session_costs_no_other_its_record(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await desk_of(recorder, "a", "b", "c")

    async def broken() -> SessionRecord:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(desk._open["b"].session, "close", broken)
    ended = asyncio.create_task(desk.close_all())
    await recorder.began.wait()
    await asyncio.sleep(0.1)
    assert not ended.done(), "what the bug raised waits for the others"
    recorder.go_on.set()
    with pytest.raises(ZeroDivisionError):
        await ended
    assert sorted(recorder.kept) == ["a", "c"]
