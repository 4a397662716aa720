"""Judgement that is kept, and what there is to judge."""

from __future__ import annotations

from pathlib import Path

import msgspec

from longrein.cli.evaluate import kept_report
from longrein.rollout.evaluate import report
from tests.traces import call, failed, rollout


def test_a_report_that_json_cannot_say_is_made_again(tmp_path: Path) -> None:
    """All unscorable: the run that goes on must not end at its own report."""
    file = tmp_path / "eval-base.json"
    assert kept_report(file) is None
    file.write_bytes(msgspec.json.encode(report(["a"], [[failed("x")]], [1])))
    assert kept_report(file) is None
    whole = report(["a"], [[rollout("r", [call(0, None, [1], [2])])]], [1])
    file.write_bytes(msgspec.json.encode(whole))
    assert kept_report(file) == whole
