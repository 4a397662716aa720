"""``longrein tasks``: what a user sees of tasks before a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.cli.main import main
from longrein.tasks.harbor import read_tasks
from longrein.tasks.jsonl import read_jsonl
from longrein.tasks.suite import ProceduralSuite
from longrein.types import Task

FEW = ["--families", "links", "small_class", "write_number", "--count", "3", "--split", "train"]


def test_list_tells_kinds_or_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "--families", "links", "codec", "--count", "8"]) == 0
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()[1:3]] == [
        ["links/1", "4", "4", "shell"],
        ["codec/1", "4", "4", "coding", "python3"],
    ]
    assert main(["tasks", "list", *FEW, "--each"]) == 0
    assert "write_number-train-0-00002" in capsys.readouterr().out


def test_show_keeps_the_hidden_test_back_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "links-train-0-00000", *FEW]) == 0
    shown = capsys.readouterr().out
    assert "family: links" in shown and "--- links.txt" in shown and "checks.json" not in shown
    assert main(["tasks", "show", "links-train-0-00000", *FEW, "--tests"]) == 0
    assert "--- tests/checks.json" in capsys.readouterr().out
    assert main(["tasks", "show", "nope", *FEW]) == 1
    assert "no task 'nope'" in capsys.readouterr().err


def test_check_judges_for_real_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", *FEW]) == 0
    assert "3 of 3 tasks are right" in capsys.readouterr().out
    reward = 'echo %s > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"'
    rows = [
        {"task_id": "easy", "prompt": "p", "tests": {"test.sh": reward % 1}, "oracle": ["true"]},
        {"task_id": "hard", "prompt": "p", "tests": {"test.sh": reward % 0}, "oracle": ["true"]},
        {"task_id": "none", "prompt": "p", "tests": {"test.sh": "exit 3"}},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["tasks", "check", "--source", "jsonl", "--path", str(path)]) == 1
    said = capsys.readouterr().out
    assert "easy: doing nothing is worth 1, not 0" in said
    assert "hard: the oracle is worth 0, not 1" in said
    assert "none: it has no oracle (solution/solve.sh); doing nothing is worth nothing that can be said" in said
    assert "0 of 3 tasks are right" in said


def test_check_uses_the_sandbox_of_the_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "run.toml"
    lines = [
        'output_dir = "r"',
        "[model]",
        'path = "m"',
        "[harness]",
        'argv = ["x"]',
        "[sandbox]",
        'backend = "docker"',
    ]
    run_file.write_text("\n".join([*lines, 'image = "an-image"', ""]))
    (tmp_path / "docker").write_text("#!/bin/sh\necho no $3 >&2; exit 1\n")
    (tmp_path / "docker").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert main(["tasks", "check", *FEW, "--run-file", str(run_file)]) == 1
        assert "docker cannot use image 'an-image': no an-image" in capsys.readouterr().err
        assert main(["tasks", "check", *FEW, "--backend", "docker", "--image", "mine"]) == 1
        assert "docker cannot use image 'mine'" in capsys.readouterr().err


def test_exports_are_read_back_as_the_same_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    families = ["--families", "git_history", "archives", "codec", "--count", "6", "--split", "test", "--seed", "4"]
    tasks = ProceduralSuite(families=("git_history", "archives", "codec")).tasks("test", 6, 4)
    assert main(["tasks", "export", str(tmp_path / "out.jsonl"), *families]) == 0
    assert read_jsonl(tmp_path / "out.jsonl") == tuple(tasks)
    assert main(["tasks", "export", str(tmp_path / "out"), *families]) == 0
    assert read_tasks(tmp_path / "out") == tuple(sorted(tasks, key=lambda task: task.task_id))
    for target in ("out", "out.jsonl"):
        assert main(["tasks", "export", str(tmp_path / target), *families]) == 1
        assert "exists already" in capsys.readouterr().err


def test_the_tasks_of_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "run.toml"
    lines = ['output_dir = "r"', "[model]", 'path = "m"', "[harness]", 'argv = ["x"]']
    lines += ["[tasks]", 'families = ["links"]', "difficulty = [2]", ""]
    run_file.write_text("\n".join(lines))
    assert main(["tasks", "list", "--run-file", str(run_file), "--count", "2"]) == 0
    assert "links/2" in capsys.readouterr().out
    assert main(["tasks", "list", "--families", "nope"]) == 1
    assert "no task family is named 'nope'" in capsys.readouterr().err


def test_bad_lines_are_named_all_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "p", "task_id": 1}\n{\n\n{"question": "q"}\n{"prompt": "p", "task_id": 1}\n[]\n')
    assert main(["tasks", "list", "--source", "jsonl", "--path", str(path)]) == 1
    said = capsys.readouterr().err
    assert "5 problem(s)" not in said and "4 problem(s)" in said
    for problem in (":2: bad JSON", ":4 has no 'prompt'", ":6 is of type list", "task_id '1' comes twice"):
        assert f"{path}{problem}" in said or problem in said


def test_what_json_lines_cannot_say_is_refused(tmp_path: Path) -> None:
    from longrein.errors import TaskError
    from longrein.tasks.jsonl import write_jsonl

    for metadata, problem in (
        ({"prompt": 1}, "would not be read back"),
        ({"x": None}, "would not be"),
        ({"x": object()}, "no form in JSON"),
    ):
        with pytest.raises(TaskError, match=problem):
            write_jsonl(tmp_path / "x.jsonl", [Task(task_id="t", prompt="p", metadata=metadata)])
        assert not (tmp_path / "x.jsonl").exists()


def test_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.jsonl"
    row = {"prompt": "Say [/INST] to a list[int].", "task_id": "a[b]", "family": "[red]"}
    path.write_text(f"{json.dumps(row)}\n")
    source = ["--source", "jsonl", "--path", str(path), "--split", "train"]
    assert main(["tasks", "list", "--each", *source]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["a[b]", "[red]", "0", *row["prompt"].split()]
    assert main(["tasks", "list", *source]) == 0
    assert "[red]" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5"])
def test_numbers_that_would_hang_or_mislead_are_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["list", "--count", number], ["check", "--jobs", number]):
        with pytest.raises(SystemExit):
            main(["tasks", *arguments])
        assert "is no number above 0" in capsys.readouterr().err


def test_tasks_that_cannot_be_judged_are_all_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"prompt": "p{number}"}}\n' for number in range(3)))
    source = ["--source", "jsonl", "--path", str(path)]
    assert main(["tasks", "check", *source]) == 1
    said = capsys.readouterr().err
    assert all(f"task '{number}' has no tests/test.sh" in said for number in (1, 2, 3))
    assert main(["tasks", "export", str(tmp_path / "out"), *source]) == 1
    said = capsys.readouterr().err
    assert all(f"task '{number}' cannot be written" in said for number in (1, 2, 3))
    assert not (tmp_path / "out").exists()


def test_a_check_is_made_in_the_run_files_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "run.toml"
    lines = ['output_dir = "r"', "[model]", 'path = "m"', "[sandbox]", 'backend = "podman"', ""]
    run_file.write_text("\n".join(lines))
    check = ["tasks", "check", "--run-file", str(run_file), "--families", "links", "--count", "1", "--split", "train"]
    assert main(check) == 1
    assert "backend 'podman' needs an image" in capsys.readouterr().err
    assert main([*check, "--backend", "auto"]) == 0
