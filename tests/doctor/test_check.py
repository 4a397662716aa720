"""A check becomes a finding, whatever becomes of the check."""

from __future__ import annotations

import asyncio

import pytest

from longrein.doctor.check import About, examine
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.errors import EngineError


class Raises:
    about = About(name="raises", certifies="nothing")

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def run(self) -> Verdict:
        raise self.error


class Hangs:
    about = About(name="hangs", certifies="nothing")

    async def run(self) -> Verdict:
        await asyncio.Event().wait()
        return passed("never")


async def test_a_check_that_hangs_fails_in_time() -> None:
    finding = await examine(Hangs(), 0.05)
    assert (finding.status, finding.check) == ("fail", "hangs")
    assert "did not end within" in finding.seen


@pytest.mark.parametrize("error", [EngineError("the engine is gone"), OSError("no space left")])
async def test_a_fault_of_the_world_is_a_failure(error: Exception) -> None:
    finding = await examine(Raises(error), 5)
    assert finding.status == "fail"
    assert str(error) in finding.seen


async def test_a_bug_is_a_bug() -> None:
    with pytest.raises(KeyError):
        await examine(Raises(KeyError("x")), 5)


def test_the_worst_decides() -> None:
    good, bad, open_ = passed("a"), failed("b", "mend b"), cannot_tell("c", "look at c")
    assert combined([good, open_, bad, failed("d", "mend b")]) == failed("b; d", "mend b")
    assert combined([good, open_]) == open_
    assert combined([good, passed("e")]) == passed("a; e")
