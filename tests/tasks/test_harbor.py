from __future__ import annotations

import logging
import math
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TaskError
from longrein.tasks.harbor import CONTAINER_FILES, export_task, export_tasks, read_task, read_tasks
from longrein.tasks.suite import ProceduralSuite
from longrein.types import Task
from tests.tasks.grading import grade, write_tree

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = st.from_regex(r"[a-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
TREE = st.dictionaries(
    st.builds(lambda folder, name: f"{folder}{name}", st.sampled_from(["", "sub.d/", "a.d/b.d/"]), NAME),
    st.binary(max_size=50),
    max_size=4,
).filter(lambda tree: not CONTAINER_FILES & tree.keys() and not {"sub.d", "a.d"} & tree.keys())
SECONDS = st.floats(0.001, 1e9)
SCALAR = (
    TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False) | st.dates() | st.datetimes()
)
METADATA = st.dictionaries(
    TEXT,
    st.recursive(
        SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5
    ),
    max_size=3,
)
TASKS = st.builds(
    Task,
    task_id=NAME,
    prompt=TEXT.filter(lambda text: text.strip() and "\0" not in text),
    files=TREE,
    tests=TREE.map(lambda tree: {**tree, "test.sh": b"#!/bin/sh\n"}),
    oracle=st.lists(TEXT.filter(str.strip), max_size=3).map(tuple),
    agent_timeout_s=SECONDS,
    verifier_timeout_s=SECONDS,
    verdict=st.sampled_from(["reward", "exit_code", "junit"]),
    metadata=METADATA,
)


@settings(deadline=None, max_examples=150)
@given(task=TASKS)
def test_a_task_written_and_read_is_the_same_task(task: Task) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read_task(export_task(task, Path(folder))) == task


def test_the_suite_survives_the_round_trip(tmp_path: Path) -> None:
    tasks = sorted(ProceduralSuite().tasks("train", 5, 0), key=lambda task: task.task_id)
    for task in tasks:
        export_task(task, tmp_path)
    assert read_tasks(tmp_path) == tuple(tasks)


FOREIGN = {
    "task.toml": b"""schema_version = "1.1"
[task]
name = "org/hello"
[metadata]
difficulty = "easy"
tags = ["a", "b"]
[agent]
timeout_sec = 12
[verifier]
timeout_sec = 3.5
[environment]
cpus = 2
docker_image = "ubuntu:24.04"
""",
    "instruction.md": "Write hello into out.txt — once.\n".encode(),
    "environment/Dockerfile": b"FROM ubuntu:24.04\n",
    "environment/data/in.txt": b"hello\n",
    "solution/solve.sh": b"#!/bin/bash\nset -e\ncp data/in.txt out.txt\n",
    "tests/test.sh": b'#!/bin/bash\nmkdir -p "$SANDBOX_ROOT/logs/verifier"\ncmp -s out.txt data/in.txt && r=1 || r=0\n'
    b'echo $r > "$SANDBOX_ROOT/logs/verifier/reward.txt"\n',
    "tests/extra.py": b"",
}


def foreign(folder: Path, **changed: bytes | None) -> Path:
    """A task directory as Harbor users write them; ``task__toml=None`` leaves a file out."""
    tree = dict(FOREIGN)
    for key, content in changed.items():
        path = key.replace("___", "/").replace("__", ".")
        tree.pop(path, None)
        if content is not None:
            tree[path] = content
    write_tree(folder, tree)
    return folder


def test_a_directory_as_harbor_users_write_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        task = read_task(foreign(tmp_path / "hello"))
    assert task.task_id == "hello"
    assert task.prompt == "Write hello into out.txt — once."
    assert task.files == {"data/in.txt": b"hello\n"}
    assert set(task.tests) == {"test.sh", "extra.py"}
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (12.0, 3.5)
    assert task.metadata == {"difficulty": "easy", "tags": ["a", "b"]}
    assert grade(task, task.oracle) == 1.0
    assert grade(task, ()) == 0.0
    for ignored in ("environment/Dockerfile", "environment.cpus", "environment.docker_image"):
        assert ignored in caplog.text


@pytest.mark.parametrize(
    ("changed", "file", "problem"),
    [
        ({"instruction__md": None}, "instruction.md", "missing"),
        ({"instruction__md": b" \n"}, "instruction.md", "is empty"),
        ({"instruction__md": b"\xff"}, "instruction.md", "not UTF-8"),
        ({"task__toml": None}, "task.toml", "missing"),
        ({"task__toml": b"[agent]\ntimeout_sec = = 3\n"}, "task.toml", "line 2"),
        ({"task__toml": b"\xff"}, "task.toml", "not UTF-8"),
        ({"task__toml": b"[agent]\ntimeout_sec = 'long'\n"}, "task.toml", "[agent] timeout_sec = 'long'"),
        ({"task__toml": b"[agent]\ntimeout_sec = true\n"}, "task.toml", "[agent] timeout_sec = True"),
        ({"task__toml": b"[agent]\ntimeout_sec = inf\n"}, "task.toml", "[agent] timeout_sec = inf"),
        ({"task__toml": b"[verifier]\ntimeout_sec = 0\n"}, "task.toml", "[verifier] timeout_sec = 0"),
        ({"task__toml": b"[verifier]\ntimeout_sec = 1" + b"0" * 400}, "task.toml", "[verifier] timeout_sec = 1000"),
        ({"task__toml": b"[metadata]\nn = 1" + b"0" * 30}, "task.toml", "cannot be written down"),
        ({"task__toml": b"[metadata]\nn = 1" + b"0" * 5000}, "task.toml", "bad TOML"),
        ({"task__toml": b"[metadata]\nn = " + b"[" * 5000}, "task.toml", "bad TOML"),
        ({"task__toml": b"metadata = 3\n"}, "task.toml", "line 1: metadata = 3: must be a table"),
        ({"task__toml": b"[[steps]]\nname = 'a'\n"}, "task.toml", "line 1: [[steps]]"),
        ({"task__toml": b"[agent]\n\n[verifier]\ntimeout_sec = 0\n"}, "task.toml", "line 4: [verifier] timeout_sec"),
        (
            {"task__toml": b"[verifier]\nverdict = 'x'\n"},
            "task.toml",
            "line 2: [verifier] verdict = 'x': must be one of",
        ),
        ({"tests___test__sh": None}, "tests/test.sh", "missing"),
        ({"solution___data": b""}, "solution/solve.sh", "solve.sh alone"),
        ({"solution___solve__sh": None, "solution___data": b""}, "solution/solve.sh", "missing beside"),
        ({"solution___solve__sh": b"\xff"}, "solution/solve.sh", "not UTF-8"),
    ],
)
def test_a_bad_directory_is_named_with_its_file_and_problem(
    tmp_path: Path, changed: dict[str, bytes | None], file: str, problem: str
) -> None:
    folder = foreign(tmp_path / "bad", **changed)
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    assert f"{folder / file}: " in str(caught.value)
    assert problem in str(caught.value)


def test_every_bad_task_of_a_folder_is_reported_at_once(tmp_path: Path) -> None:
    foreign(tmp_path / "good")
    foreign(tmp_path / "one", instruction__md=None, task__toml=b"x =")
    foreign(tmp_path / "two", tests___test__sh=None)
    with pytest.raises(TaskError) as caught:
        read_tasks(tmp_path)
    message = str(caught.value)
    assert "2 of 3 task directories" in message
    assert all(
        f"{tmp_path / path}: " in message for path in ("one/instruction.md", "one/task.toml", "two/tests/test.sh")
    )
    assert str(tmp_path / "good") not in message


def test_symlinks_are_refused_not_followed(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "links")
    (folder / "environment/secret").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="environment/secret: symlinks are not supported"):
        read_task(folder)


def test_hidden_directories_and_loose_files_are_no_tasks(tmp_path: Path) -> None:
    foreign(tmp_path / "task")
    foreign(tmp_path / ".git")
    (tmp_path / "README.md").write_text("about")
    assert [task.task_id for task in read_tasks(tmp_path)] == ["task"]


def test_a_missing_or_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no task directories"):
        read_tasks(tmp_path)
    with pytest.raises(TaskError, match="no such folder"):
        read_tasks(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task_id": "a/b"}, "no plain folder name"),
        ({"task_id": ".."}, "no plain folder name"),
        ({"tests": {}}, "tests/test.sh is missing"),
        ({"prompt": " "}, "prompt is empty"),
        ({"files": {"Dockerfile": b""}}, "taken for the container's"),
        ({"oracle": ("a\n# longrein: next command\nb",)}, "oracle command"),
        ({"metadata": {"key": None}}, "TOML has no form for"),
        ({"metadata": {1: "x"}}, "TOML keys are strings"),
        ({"metadata": {"key": "\udc80"}}, "surrogates not allowed"),
        ({"prompt": "\udc80"}, "surrogates not allowed"),
        ({"agent_timeout_s": math.inf}, "agent_timeout_s is inf"),
        *(({"files": {path: b""}}, "leaves its folder") for path in ("../x", "a/../../../x", "/x", "", ".", "a\0")),
        ({"files": {"./a//b": b""}}, "under other names"),
        ({"tests": {"test.sh": b"", "../../../x": b""}}, "leaves its folder"),
        ({"files": {"a": b"", "a/b": b""}}, "lies in 'a', which is a file"),
    ],
)
def test_what_the_format_cannot_say_is_refused(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    fields = {"task_id": "t", "prompt": "p", "tests": {"test.sh": b""}, **change}
    with pytest.raises(TaskError, match=problem):
        export_task(Task(**fields), tmp_path / "out")  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_an_export_writes_all_tasks_or_none_and_names_every_bad_one(tmp_path: Path) -> None:
    good = Task(task_id="good", prompt="p", tests={"test.sh": b""})
    bad = [msgspec.structs.replace(good, task_id="mbpp/3"), msgspec.structs.replace(good, task_id="mute", prompt="")]
    with pytest.raises(TaskError, match=r"(?s)2 problems .*'mbpp/3'.*prompt is empty"):
        export_tasks([good, *bad], tmp_path / "out")
    with pytest.raises(TaskError, match="several tasks have the task_id 'good'"):
        export_tasks([good, good], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export_tasks([good, msgspec.structs.replace(good, task_id="other")], tmp_path / "out")
    assert [task.task_id for task in read_tasks(tmp_path / "out")] == ["good", "other"]


def test_an_export_never_writes_over_a_task(tmp_path: Path) -> None:
    task = Task(task_id="t", prompt="p", tests={"test.sh": b""})
    export_task(task, tmp_path)
    with pytest.raises(TaskError, match="exists already"):
        export_task(task, tmp_path)


def test_links_to_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    for pool in ("one", "two"):
        foreign(tmp_path / pool / "same")
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / pool).symlink_to(tmp_path / pool / "same")
    with pytest.raises(TaskError, match="several tasks have the task_id 'same'"):
        read_tasks(tmp_path / "tasks")
