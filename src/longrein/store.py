"""The run directory: durable, append-only, readable by pandas, DuckDB and ``datasets``.

``rollouts/`` holds one Parquet file a finished group, one line a rollout, written aside and renamed. The rollout
worker alone writes it; the trainer alone writes ``metrics.jsonl`` and ``checkpoints/``. What a resumed run cannot go on
with is moved to ``rollouts-lost/``, so that ``rollouts/`` is always the past of the weights there are.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from longrein.errors import TraceError
from longrein.rollout_lines import SCHEMA, group_of, is_scored, lines_of
from longrein.types import RolloutGroup

ROLLOUTS = "rollouts"
LOST = "rollouts-lost"


class GroupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One finished group on disk, as far as its file tells without its tokens."""

    path: Path
    group_id: str
    task_id: str
    scored: bool
    """It has advantages. The judge of a group that was written without never came to it."""
    max_policy_version: int
    """Of all its calls; 0 where it has none."""
    solved: int
    """Rollouts whose verdict is 1 or more."""
    judged: int
    """Rollouts with a verdict."""

    def read(self) -> RolloutGroup:
        """The group. Raises :class:`~longrein.errors.TraceError` when the file is damaged."""
        return _read(self.path)


class RunStore:
    """The rollouts of one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ROLLOUTS
        self._lost = folder / LOST
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*.part"):
            leftover.unlink()
        written = [*self.folder.glob("*.parquet"), *self._lost.glob("*.parquet")]
        self._next = 1 + max((_place_of(path) for path in written), default=-1)

    def files(self) -> Iterator[GroupFile]:
        """Every finished group, in the order in which they finished.

        Raises:
            TraceError: a file is not a rollout file of ours.
        """
        for path in sorted(self.folder.glob("*.parquet")):
            yield _group_file(path)

    def lose(self, file: GroupFile) -> None:
        """Move a group to ``rollouts-lost/``. Numbers are never given twice, so it replaces none."""
        self._lost.mkdir(exist_ok=True)
        file.path.rename(self._lost / file.path.name)

    def lost(self) -> frozenset[str]:
        """Ids of the groups that were ever lost."""
        return frozenset(path.stem.partition("-")[2] for path in self._lost.glob("*.parquet"))

    def append(self, group: RolloutGroup) -> Path:
        """Write a finished group durably; it is on disk, whole, when this returns."""
        path = self.folder / f"{self._next:06d}-{group.group_id}.parquet"
        part = self.folder / f".{path.name}.part"
        table = pa.Table.from_pylist(lines_of(group), SCHEMA)
        # Token ids hardly repeat: a dictionary of them doubles the file and the time.
        pq.write_table(table, part, compression="zstd", use_dictionary=False, write_statistics=False)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(path)
        self._next += 1
        return path


def read_groups(folder: Path) -> Iterator[RolloutGroup]:
    """The finished groups of a run directory, in order.

    Raises:
        TraceError: a file is not a rollout file of ours.
    """
    for path in sorted((folder / ROLLOUTS).glob("*.parquet")):
        yield _read(path)


def _read(path: Path) -> RolloutGroup:
    with _readable(path):
        lines = pq.read_table(path, schema=SCHEMA).to_pylist()
        _require_lines(path, lines, ["group_id", "task_id", "task", "session_id", "status"])
        return group_of(lines)


def _place_of(path: Path) -> int:
    place = path.name.partition("-")[0]
    if not (place.isascii() and place.isdigit()):
        raise TraceError(f"{path}: not named like a rollout file, as in 000012-g000003.parquet. Move it elsewhere.")
    return int(place)


def _require_lines(path: Path, lines: list[dict[str, object]], columns: list[str]) -> None:
    """Raise ``TraceError`` for a table that is not one of ours."""
    missing = [name for name in columns if any(line.get(name) is None for line in lines)]
    if missing or not lines:
        what = f"nothing in column {', '.join(missing)}" if missing else "no rollout"
        raise TraceError(f"{path}: not a readable rollout file: it has {what}. Remove it and go on.")


def _group_file(path: Path) -> GroupFile:
    # Of long traces, all but a few bytes stay unread.
    columns = ["group_id", "task_id", "advantage", "harness_reward", "failure_kind"]
    columns += ["calls.list.element.max_policy_version"]
    with _readable(path), pq.ParquetFile(path) as file:
        lines = file.read(columns).to_pylist()
    _require_lines(path, lines, ["group_id", "task_id", "calls"])
    verdicts = [line["harness_reward"] for line in lines if line["failure_kind"] is None]
    judged = [verdict for verdict in verdicts if verdict is not None]
    versions = [call["max_policy_version"] for line in lines for call in line["calls"]]
    return GroupFile(
        path=path,
        group_id=lines[0]["group_id"],
        task_id=lines[0]["task_id"],
        scored=is_scored(lines),
        max_policy_version=max(versions, default=0),
        solved=sum(verdict >= 1.0 for verdict in judged),
        judged=len(judged),
    )


@contextmanager
def _readable(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except (pa.ArrowException, msgspec.MsgspecError, OSError) as error:
        raise TraceError(f"{path}: not a readable rollout file: {error}. Remove it and go on.") from error
