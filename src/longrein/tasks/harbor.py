"""Reader of Harbor task directories, and the writer that is its inverse.

The format (``task.toml`` + ``instruction.md`` + ``environment/`` + ``tests/`` +
``solution/``) is read by our own code, without containers: what ``environment/`` holds beside its Dockerfile is put
into the work directory, and image, resources and environment variables of the container are ignored with a note.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from longrein.errors import TaskError
from longrein.tasks.sound import check_all, problem_of, require_different
from longrein.tasks.task_toml import TaskToml, parse_task_toml, write_task_toml
from longrein.types import Task

log = logging.getLogger(__name__)

TURN_MARK = "# longrein: next command\n"
"""Between two commands of an exported ``solve.sh``: comments to a shell, one turn each to us."""
CONTAINER_FILES = frozenset({"Dockerfile", ".dockerignore", "docker-compose.yaml", "docker-compose.yml"})
"""Under ``environment/``, for the container only: never put into the work directory."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class TaskProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a directory from being a task."""

    path: Path
    problem: str
    """What is wrong and what to do."""


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one directory gave: a task, or the reasons why not."""

    task: Task | None
    problems: tuple[TaskProblem, ...]
    ignored: tuple[str, ...] = ()


def read_task(folder: Path) -> Task:
    """Read one task directory; its name is the task id.

    Raises:
        TaskError: naming every bad file of it with its problem.
    """
    return _tasks_or_error(folder, [_read(folder)])[0]


def read_tasks(folder: Path) -> tuple[Task, ...]:
    """Read every task directory under ``folder``, by name. Hidden directories are skipped.

    Raises:
        TaskError: naming every bad file of every bad task, at once.
    """
    if not folder.is_dir():
        raise TaskError(f"{folder}: no such folder of tasks. Give a folder whose subfolders each hold a task.toml.")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise TaskError(f"{folder}: holds no task directories. Each task is a subfolder with task.toml in it.")
    tasks = _tasks_or_error(folder, [_read(path) for path in folders])
    # Links to folders of one name elsewhere.
    require_different(tasks)
    return tasks


def export_tasks(tasks: Iterable[Task], folder: Path) -> None:
    """Write each with :func:`export_task`.

    Raises:
        TaskError: ``folder`` holds something, or tasks cannot be said in this format: all of them named, before
            anything is written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TaskError(f"{folder}: exists already and is no empty folder. Export into a new one.")
    listed = [*tasks]
    check_all(listed, _files_of)
    require_different(listed)
    for task in listed:
        export_task(task, folder)


def export_task(task: Task, folder: Path) -> Path:
    """Write ``folder/<task_id>`` so that :func:`read_task` gives the same task back; returns that directory.

    Raises:
        TaskError: the directory exists, or the task cannot be said in this format (no ``test.sh``, an id that is no
            folder name, a file named like a container file or outside its folder, metadata that TOML lacks).
    """
    files = _files_of(task)
    target = folder / task.task_id
    if target.exists():
        raise TaskError(f"{target}: exists already. Export into an empty folder.")
    for path, content in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)
    return target


def _files_of(task: Task) -> dict[str, bytes]:
    """Path in the task's directory -> content."""
    _check_exportable(task)
    settings = TaskToml(
        metadata=task.metadata,
        agent_timeout_s=task.agent_timeout_s,
        verifier_timeout_s=task.verifier_timeout_s,
        verdict=task.verdict,
    )
    files = {
        "task.toml": write_task_toml(settings).encode(),
        "instruction.md": f"{task.prompt}\n".encode(),
        **{f"environment/{path}": content for path, content in task.files.items()},
        **{f"tests/{path}": content for path, content in task.tests.items()},
    }
    if task.oracle:
        files["solution/solve.sh"] = TURN_MARK.join(f"{command}\n" for command in task.oracle).encode()
    return files


def _check_exportable(task: Task) -> None:
    where = f"task {task.task_id!r} cannot be written as a task directory"
    if not _FOLDER_NAME.fullmatch(task.task_id):
        raise TaskError(f"{where}: its id is no plain folder name. Use letters, digits, '.', '_' and '-'.")
    if "test.sh" not in task.tests:
        raise TaskError(f"{where}: tests/test.sh is missing. Add the script that writes the reward.")
    problem = problem_of(task)
    if problem:
        raise TaskError(f"{where}: {problem}")
    unlike = sorted(path for path in (*task.files, *task.tests) if path != str(PurePosixPath(path)))
    if unlike:
        raise TaskError(f"{where}: files {unlike} would be read back under other names. Spell them plainly.")
    lost = sorted(CONTAINER_FILES & task.files.keys())
    if lost:
        raise TaskError(f"{where}: files {lost} would be taken for the container's. Rename them.")
    if any(TURN_MARK.strip() in command or not command.strip() for command in task.oracle):
        raise TaskError(f"{where}: an oracle command is empty or holds {TURN_MARK.strip()!r}. Change it.")


def _tasks_or_error(where: Path, readings: Sequence[_Reading]) -> tuple[Task, ...]:
    problems = [problem for reading in readings for problem in reading.problems]
    if problems:
        lines = "\n".join(f"  {problem.path}: {problem.problem}" for problem in problems)
        bad = sum(1 for reading in readings if reading.problems)
        raise TaskError(f"{where}: {bad} of {len(readings)} task directories cannot be used:\n{lines}")
    _log_ignored(where, readings)
    return tuple(reading.task for reading in readings if reading.task is not None)


def _log_ignored(where: Path, readings: Sequence[_Reading]) -> None:
    ignored = sorted({item for reading in readings for item in reading.ignored})
    if ignored:
        log.warning("%s: ignored, since tasks run without a container: %s", where, ", ".join(ignored))


def _read(folder: Path) -> _Reading:
    """Read one directory, gathering every problem instead of stopping at the first."""
    settings = parse_task_toml(folder / "task.toml")
    problems = [TaskProblem(path=folder / "task.toml", problem=problem) for problem in settings.problems]
    prompt = _read_prompt(folder / "instruction.md", problems)
    files = _read_tree(folder / "environment", problems)
    tests = _read_tree(folder / "tests", problems)
    solution = _read_tree(folder / "solution", problems)
    if "test.sh" not in tests:
        problems.append(
            TaskProblem(path=folder / "tests/test.sh", problem="missing; write the script that writes the reward")
        )
    oracle = _read_oracle(folder / "solution/solve.sh", solution, problems)
    if problems:
        return _Reading(task=None, problems=tuple(problems))
    ignored = [f"environment/{name}" for name in CONTAINER_FILES & files.keys()]
    task = Task(
        task_id=folder.resolve().name,
        prompt=prompt,
        files={path: content for path, content in files.items() if path not in CONTAINER_FILES},
        tests=tests,
        oracle=oracle,
        agent_timeout_s=settings.value.agent_timeout_s,
        verifier_timeout_s=settings.value.verifier_timeout_s,
        verdict=settings.value.verdict,
        metadata=settings.value.metadata,
    )
    problem = problem_of(task)
    if problem:
        return _Reading(task=None, problems=(TaskProblem(path=folder / "task.toml", problem=problem),))
    return _Reading(task=task, problems=(), ignored=(*settings.ignored, *ignored))


def _read_prompt(path: Path, problems: list[TaskProblem]) -> str:
    if not path.is_file():
        problems.append(TaskProblem(path=path, problem="missing; write what the agent is asked"))
        return ""
    text = _decode(path, path.read_bytes(), problems)
    if not text.strip():
        problems.append(TaskProblem(path=path, problem="is empty; write what the agent is asked"))
    return text.removesuffix("\n")


def _read_oracle(path: Path, solution: dict[str, bytes], problems: list[TaskProblem]) -> tuple[str, ...]:
    """Commands of ``solve.sh``: one, unless :func:`export_task` marked where turns end."""
    if not solution:
        return ()
    if set(solution) != {"solve.sh"}:
        extra = sorted(set(solution) - {"solve.sh"})
        problems.append(
            TaskProblem(path=path, problem=f"solution/ must hold solve.sh alone; put what {extra} hold into it")
            if "solve.sh" in solution
            else TaskProblem(path=path, problem="missing beside the other files of solution/; add it or remove them")
        )
        return ()
    script = _decode(path, solution["solve.sh"], problems)
    return tuple(command.removesuffix("\n") for command in script.split(TURN_MARK) if command.strip())


def _read_tree(folder: Path, problems: list[TaskProblem]) -> dict[str, bytes]:
    """Regular files under a folder by relative path. A symlink is a problem: it could point anywhere."""
    found: dict[str, bytes] = {}
    if folder.exists() and not folder.is_dir():
        problems.append(TaskProblem(path=folder, problem="must be a folder"))
        return found
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            problems.append(TaskProblem(path=path, problem="symlinks are not supported; put the file itself there"))
        elif path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _decode(path: Path, content: bytes, problems: list[TaskProblem]) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        problems.append(TaskProblem(path=path, problem=f"is not UTF-8 (byte {error.start}); save it as UTF-8"))
        return ""
