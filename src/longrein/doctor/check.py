"""What a check is, and how any check is run to a result."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import msgspec

from longrein.doctor.result import CheckResult, Verdict, cannot_tell, failed
from longrein.errors import LongreinError


class About(msgspec.Struct, frozen=True, kw_only=True):
    """How a check is called, and what it is for."""

    name: str
    """One word for the command line."""
    certifies: str
    """What a pass means."""


class Check(Protocol):
    """Looks at one part of a setup. Leaves nothing behind, and changes nothing for good."""

    @property
    def about(self) -> About:
        """The same for every instance of a class."""
        ...

    async def run(self) -> Verdict:
        """Look. A :class:`~longrein.errors.LongreinError` that comes of it counts as a failure, told by its message."""
        ...


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in for a check that needs what another one found broken; a :class:`Check`."""

    about: About
    needs: About

    async def run(self) -> Verdict:
        """Nothing can be said."""
        other = self.needs.name
        return cannot_tell(f"it needs what the check '{other}' found broken", f"mend '{other}' first")


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """Stands in for a check whose object could not even be had; a :class:`Check`."""

    about: About
    why: str

    async def run(self) -> Verdict:
        """Fail with the reason."""
        return failed(self.why, "")


async def examine(check: Check, patience_s: float) -> CheckResult:
    """Run a check, at most ``patience_s`` long. Bugs of ours pass through."""
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(patience_s):
            verdict = await check.run()
    except LongreinError as error:
        verdict = failed(str(error), "")
    except TimeoutError:
        verdict = failed(f"it did not end within {patience_s:.0f} s", "see whether what it asks still answers")
    except OSError as error:
        verdict = failed(f"{type(error).__name__}: {error}", "")
    return CheckResult(
        check=check.about.name,
        certifies=check.about.certifies,
        status=verdict.status,
        seen=verdict.seen,
        fix=verdict.fix,
        duration_s=time.monotonic() - started_s,
    )
