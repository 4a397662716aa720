"""JUnit reports, counted as they are read: no tree is built, no entity is ever expanded, size is bounded.

Format: the ``testsuites`` / ``testsuite`` / ``testcase`` XML that pytest and others write, where a case holds
``failure``, ``error`` or ``skipped`` unless it passed.
"""

from __future__ import annotations

from xml.parsers import expat

import msgspec

LARGEST_BYTES = 16 << 20
_DEEPEST = 100


class JUnitError(ValueError):
    """It is no JUnit report that we read."""


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of test cases."""

    passed: int
    failed: int
    """Those with a failure or an error."""
    skipped: int


class _Counter:
    def __init__(self) -> None:
        self.cases: list[str] = []
        self._path: list[str] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name not in ("testsuites", "testsuite"):
            raise JUnitError(f"its root is {name!r}, not testsuites or testsuite")
        if len(self._path) >= _DEEPEST:
            raise JUnitError(f"it is nested more than {_DEEPEST} deep")
        if name == "testcase":
            self.cases.append("passed")
        elif self._path[-1:] == ["testcase"]:
            if name in ("failure", "error"):
                self.cases[-1] = "failed"
            elif name == "skipped" and self.cases[-1] == "passed":
                self.cases[-1] = "skipped"
        self._path.append(name)

    def end(self, name: str) -> None:
        self._path.pop()

    def refuse(self, *_declared: object) -> None:
        raise JUnitError("it declares a document type, by which entities could be made; leave it out")


def count_cases(data: bytes) -> Cases:
    """Count the test cases of a report.

    Raises:
        JUnitError: too large, not well-formed, with a document type, or no JUnit report.
    """
    if len(data) > LARGEST_BYTES:
        raise JUnitError(f"it has {len(data)} bytes, more than {LARGEST_BYTES}")
    counter = _Counter()
    parser = expat.ParserCreate()
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = counter.refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise JUnitError(str(error)) from error
    kinds = counter.cases
    return Cases(passed=kinds.count("passed"), failed=kinds.count("failed"), skipped=kinds.count("skipped"))
