"""Sessions that cannot be recorded: told at the start, or in the log; nobody else suffers from it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.gateway.session import SessionRecord
from longrein.serve.recording import FolderRecorder
from longrein.types import Trace
from tests.traces import call


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"sessions cannot be recorded in .*file"):
        FolderRecorder(tmp_path / "file")


async def test_a_disk_that_takes_nothing_more_costs_the_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = FolderRecorder(tmp_path / "run")
    trace = Trace(session_id="mine", calls=(call(0, None, [1, 2], [3]),))
    record = SessionRecord(trace=trace, truncated=False, failure=None, counters={})
    assert Path(await recorder.keep("mine", record)).is_file()
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.ERROR):
        assert await recorder.keep("yours", record) == ""
    assert "session yours is not recorded" in caplog.text
