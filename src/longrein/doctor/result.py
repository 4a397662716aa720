"""What a check says: pass, fail or cannot tell, with what was seen and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Status = Literal["pass", "fail", "cannot tell"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one check came to."""

    status: Status
    seen: str
    """What was measured, in words and numbers."""
    fix: str = ""
    """What to do about it; empty where nothing is to be done, or where ``seen`` says it."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with the check it is of: a line of the table."""

    check: str
    certifies: str
    """What a pass means."""
    status: Status
    seen: str
    fix: str
    duration_s: float


def passed(seen: str) -> Verdict:
    """It is as it should be."""
    return Verdict(status="pass", seen=seen)


def failed(seen: str, fix: str) -> Verdict:
    """It is not, and this is how to mend it."""
    return Verdict(status="fail", seen=seen, fix=fix)


def cannot_tell(seen: str, fix: str = "") -> Verdict:
    """What was seen proves neither."""
    return Verdict(status="cannot tell", seen=seen, fix=fix)


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of them decides; what those of its kind saw is told, and of passes all."""
    for status in ("fail", "cannot tell", "pass"):
        chosen = [verdict for verdict in verdicts if verdict.status == status]
        if chosen:
            return Verdict(
                status=status,
                seen="; ".join(verdict.seen for verdict in chosen),
                fix="; ".join(dict.fromkeys(verdict.fix for verdict in chosen if verdict.fix)),
            )
    return cannot_tell("nothing was looked at")
