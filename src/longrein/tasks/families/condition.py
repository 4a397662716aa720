"""The hidden test of a family whose verdict is one shell condition."""

from __future__ import annotations


def condition_test(check: str) -> dict[str, bytes]:
    """Grades by a POSIX shell condition, run in the work directory the agent left: full marks or none.

    It needs a POSIX shell and coreutils only.
    """
    script = (
        "#!/bin/sh\n"
        'logs="${SANDBOX_ROOT:-}/logs/verifier"\n'
        'mkdir -p "$logs" || exit 1\n'
        f'if {check}; then echo 1 > "$logs/reward.txt"; else echo 0 > "$logs/reward.txt"; fi\n'
    )
    return {"test.sh": script.encode()}
