"""What the documents say is run: TOML is loaded, Python is executed, tables name every key."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from longrein.config import RunConfig, Section
from longrein.rollout.group import RewardSettings, score_group
from longrein.run_file import load_config
from longrein.store import RunStore
from tests import tiny
from tests.traces import TASK, call, rollout

REPO = Path(__file__).parents[1]
PAGES = sorted([REPO / "README.md", REPO / "bench" / "README.md", *(REPO / "docs").rglob("*.md")])

ELSEWHERE = {"trl", "openenv"}
"""Packages of environments of their own, where tests run the snippets that need them."""


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        for number, body in enumerate(re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)):
            found.append((f"{page.relative_to(REPO)}#{number}", body))
    return found


def run_files() -> list[tuple[str, str]]:
    """TOML that is a whole run file (task files are TOML too)."""
    return [block for block in blocks("toml") if "output_dir" in block[1]]


@pytest.mark.parametrize(("where", "body"), [pytest.param(*block, id=block[0]) for block in run_files()])
def test_run_files_in_the_documents_are_valid(where: str, body: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(body)
    assert load_config(path).output_dir, where


@pytest.mark.parametrize(("where", "body"), [pytest.param(*block, id=block[0]) for block in blocks("python")])
def test_every_snippet_compiles_and_imports_what_exists(where: str, body: str) -> None:
    compile(body, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] not in ELSEWHERE:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{where}: {node.module} has no {alias.name}"


def test_the_script_for_python_runs(tmp_path: Path) -> None:
    """The page's own script, with a tiny model and two steps."""
    (_where, body) = next(block for block in blocks("python") if block[0].startswith("docs/python.md"))
    model = tiny.save_model(tmp_path / "model")
    for old, new in {
        'MODEL = "models/smollm2"': f'MODEL = "{model}"',
        "STEPS = 10": "STEPS = 2",
        'OUTPUT = "runs/from-python"': f'OUTPUT = "{tmp_path / "run"}"',
    }.items():
        assert old in body
        body = body.replace(old, new)
    script = tmp_path / "script.py"
    script.write_text(body)
    result = subprocess.run(
        [sys.executable, str(script)], cwd=REPO, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_the_snippet_about_the_run_directory_reads_one(tmp_path: Path) -> None:
    group = score_group("g", TASK, [rollout("a", [call(0, None, [1], [2])])], RewardSettings())
    RunStore(tmp_path / "runs" / "demo").append(group)
    (_where, body) = next(block for block in blocks("python") if block[0].startswith("docs/run-directory.md"))
    result = subprocess.run(
        [sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "'task_id': 't'" in result.stdout


def keys(kind: type[Section], table: str = "") -> Iterator[str]:
    """Every table and key of the run file, as the document shows them."""
    for field in msgspec.structs.fields(kind):
        sections = [kind for kind in (field.type, *get_args(field.type)) if isinstance(kind, type)]
        if sections and issubclass(sections[0], Section):
            inner = f"{table}{field.name}"
            yield f"`[{inner}]`"
            yield from keys(sections[0], f"{inner}.")
        else:
            yield f"`{field.name}`"


def test_every_key_of_the_run_file_is_documented() -> None:
    text = (REPO / "docs" / "run-file.md").read_text(encoding="utf-8")
    assert [key for key in keys(RunConfig) if key not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(REPO)} links to {target}"
