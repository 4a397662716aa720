"""``longrein tasks list|show|check|export``: the tasks of a run file, or of a source, without running an agent."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longrein.cli.check_tasks import Checked, check_tasks
from longrein.cli.command import Command
from longrein.cli.task_parts import source_of, verifier_of
from longrein.config import SandboxSection, TasksSection
from longrein.errors import ConfigError, TaskError
from longrein.run_file import load_config
from longrein.sandboxes.base import SandboxBackend
from longrein.sandboxes.choose import BackendName, choose_backend
from longrein.tasks.base import Split
from longrein.tasks.families.registry import FAMILIES, SUITES
from longrein.tasks.harbor import export_tasks
from longrein.tasks.jsonl import write_jsonl
from longrein.tasks.kinds import kind_of
from longrein.tasks.sound import check_all
from longrein.tasks.source import SourceKind
from longrein.types import Task

_SHOWN_CHARACTERS = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """One subcommand an action; all of them say which tasks in the same way."""
    actions = parser.add_subparsers(dest="action", required=True)
    listed = _action(actions.add_parser, "list", "kinds of tasks with their number and difficulty, or every task")
    listed.add_argument("--each", action="store_true", help="a line for each task")
    shown = _action(actions.add_parser, "show", "one task: prompt, files, metadata")
    shown.add_argument("task_id", nargs="?", help="default: the first task")
    shown.add_argument("--tests", action="store_true", help="its hidden tests and its oracle, too")
    checked = _action(
        actions.add_parser, "check", "judge each task's oracle (must be 1) and an untouched work directory (must be 0)"
    )
    checked.add_argument("--jobs", type=_positive, default=4, help="sandboxes at once (default 4)")
    checked.add_argument("--backend", choices=get_args(BackendName), help="sandbox (default the run file's, else auto)")
    checked.add_argument("--image", default="", help="of the containers of podman and docker (default the run file's)")
    exported = _action(actions.add_parser, "export", "write tasks as Harbor task directories, or as JSON lines")
    exported.add_argument("target", type=Path, help="a new folder, or a new .jsonl file")


def run(arguments: argparse.Namespace) -> int:
    """Do the action; ``check`` returns 1 when a task fails it."""
    section = _section(arguments)
    source = source_of(section)
    splits: tuple[Split, ...] = get_args(Split) if arguments.split == "all" else (arguments.split,)
    found = [task for split in splits for task in source.tasks(split, arguments.count, arguments.seed)]
    if not found:
        raise TaskError(f"this source has no task in split {arguments.split}")
    return _ACTIONS[arguments.action](arguments, section, found)


def _action(add_parser: Callable[..., argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    parser = add_parser(name, help=text, description=text)
    parser.add_argument("--run-file", type=Path, metavar="RUN.toml", help="the [tasks] of a run file")
    parser.add_argument("--source", choices=get_args(SourceKind), help="a source, in place of a run file's")
    parser.add_argument("--families", nargs="+", default=[], metavar="NAME", help="families or suites")
    parser.add_argument("--difficulty", nargs="+", type=int, default=[], metavar="LEVEL")
    parser.add_argument("--folder", type=Path, help="of Harbor task directories")
    parser.add_argument("--path", help="of a file of tasks, or a hub id")
    parser.add_argument("--subset", help="of a data set on the hub")
    parser.add_argument("--split", choices=[*get_args(Split), "all"], default="all")
    parser.add_argument("--count", type=_positive, default=100, help="at most so many tasks of a split (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _section(arguments: argparse.Namespace) -> TasksSection:
    """``[tasks]`` of the run file, with what the command line says in its place."""
    section = load_config(arguments.run_file).tasks if arguments.run_file else TasksSection()
    said = {
        "source": arguments.source,
        "families": tuple(arguments.families),
        "difficulty": tuple(arguments.difficulty),
        "folder": str(arguments.folder or ""),
        "path": arguments.path,
        "subset": arguments.subset,
    }
    return replace(section, **{key: value for key, value in said.items() if value})


def _list(arguments: argparse.Namespace, section: TasksSection, tasks: Sequence[Task]) -> int:
    table = Table(box=None)
    if arguments.each:
        for title in ("task", "kind", "files", "prompt"):
            table.add_column(title, no_wrap=True)
        for task in tasks:
            _add(table, task.task_id, kind_of(task.metadata), str(len(task.files)), _short(task.prompt))
    else:
        for title in ("kind", "tasks", "with oracle", "suite", "needs"):
            table.add_column(title)
        for kind, members in _by_kind(tasks).items():
            oracles = sum(bool(task.oracle) for task in members)
            family = str(members[0].metadata.get("family", ""))
            needs = " ".join(FAMILIES[family].needs) if family in FAMILIES else ""
            _add(table, kind or "-", str(len(members)), str(oracles), _suite_of(family), needs)
    _print(table)
    return 0


def _show(arguments: argparse.Namespace, section: TasksSection, tasks: Sequence[Task]) -> int:
    task = next((task for task in tasks if arguments.task_id in (None, task.task_id)), None)
    if task is None:
        raise ConfigError(f"no task {arguments.task_id!r} among {len(tasks)}; see longrein tasks list --each")
    print(f"{task.task_id}\n")
    for name, value in {**task.metadata, "agent_timeout_s": task.agent_timeout_s, "verdict": task.verdict}.items():
        print(f"{name}: {_short(str(value))}")
    print(f"\n{task.prompt}")
    _show_files("", task.files)
    if arguments.tests:
        _show_files("tests/", task.tests)
        for number, command in enumerate(task.oracle, 1):
            print(f"\n--- oracle, command {number}\n{command}")
    return 0


def _show_files(folder: str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = f"({len(data)} bytes that are no text)"
        print(f"\n--- {folder}{path}\n{text}")


def _check(arguments: argparse.Namespace, section: TasksSection, tasks: Sequence[Task]) -> int:
    judge = verifier_of(section)
    check_all(tasks, judge.check)
    results = asyncio.run(check_tasks(tasks, judge, _backend(arguments), arguments.jobs))
    table = Table(box=None)
    for title in ("kind", "tasks", "oracle = 1", "no-op = 0"):
        table.add_column(title)
    by_kind: dict[str, list[Checked]] = {}
    for task, result in zip(tasks, results, strict=True):
        by_kind.setdefault(kind_of(task.metadata), []).append(result)
    for kind, members in by_kind.items():
        good = [sum(member.oracle_passes for member in members), sum(member.no_op_fails for member in members)]
        _add(table, kind or "-", str(len(members)), *map(str, good))
    _print(table)
    bad = [result for result in results if result.problem]
    for result in bad:
        print(f"{result.task_id}: {result.problem}")
    print(f"{len(results) - len(bad)} of {len(results)} tasks are right")
    return 1 if bad else 0


def _backend(arguments: argparse.Namespace) -> SandboxBackend:
    said = load_config(arguments.run_file).sandbox if arguments.run_file else SandboxSection()
    return choose_backend(arguments.backend or said.backend, rootfs=said.rootfs, image=arguments.image or said.image)


def _export(arguments: argparse.Namespace, section: TasksSection, tasks: Sequence[Task]) -> int:
    target: Path = arguments.target
    if target.suffix == ".jsonl":
        write_jsonl(target, tasks)
    else:
        export_tasks(tasks, target)
    print(f"{len(tasks)} tasks are in {target}")
    return 0


def _by_kind(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(kind_of(task.metadata), []).append(task)
    return kinds


def _suite_of(family: str) -> str:
    return next((suite for suite, names in SUITES.items() if family in names), "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[: _SHOWN_CHARACTERS - 3]}..."


def _add(table: Table, *cells: str) -> None:
    """A line of cells that show what they hold, brackets included."""
    table.add_row(*map(Text, cells))


def _print(table: Table) -> None:
    # A pipe has no width that lines should be broken at.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


_ACTIONS: Mapping[str, Callable[[argparse.Namespace, TasksSection, Sequence[Task]], int]] = {
    "list": _list,
    "show": _show,
    "check": _check,
    "export": _export,
}
COMMAND = Command(name="tasks", help="list, show, check and export tasks", configure=configure, run=run)
