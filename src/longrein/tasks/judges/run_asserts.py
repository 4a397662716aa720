"""Judges ``solution.py`` of the work directory by assertions: full marks if every test holds.

Part of a hidden test. Tests run here, the code under test in a process of its own, see ``remote.py``; the tests are
gone from the disk, and our memory closed, before it is started.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limited import Budget
from remote import Remote, UnjudgeableError
from verdict import keep_to_ourselves, kill_descendants, leave_no_verdict, write_verdict

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Judge the current directory."""
    plan = json.loads((HERE / "asserts.json").read_text())
    program = (HERE / "wire.py").read_text() + (HERE / "answering.py").read_text().replace(
        "from __future__ import annotations\n", ""
    )
    (HERE / "asserts.json").unlink()
    keep_to_ourselves()
    try:
        passed = _passed(Remote(program, Budget(plan["seconds"])), plan["setup"], plan["tests"])
    except UnjudgeableError as error:
        kill_descendants()
        leave_no_verdict()
        sys.exit(f"no verdict: {error}")
    finally:
        kill_descendants()
    write_verdict(float(passed == len(plan["tests"])), passed, len(plan["tests"]))


def _passed(remote: Remote, setup: str, tests: list[str]) -> int:
    names: dict[str, Any] = {}
    try:
        names = remote.names()
        exec(setup, names)  # the test's own text
    except Exception:  # noqa: BLE001 - without a solution to ask, no test holds
        return 0
    return sum(_holds(test, dict(names)) for test in tests)


def _holds(test: str, names: dict[str, Any]) -> bool:
    try:
        exec(test, names)  # the test's own text
    except Exception:  # noqa: BLE001 - whatever the code under test raises or answers, the test does not hold
        return False
    return True


if __name__ == "__main__":
    main()
