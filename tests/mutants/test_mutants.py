"""Every invariant's property test must notice the patch that breaks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPO = HERE.parents[1]
MUTANTS = sorted(path.stem for path in HERE.glob("*.patch"))


def test_every_invariant_of_this_stage_has_a_mutant() -> None:
    covered = {tomllib.loads((HERE / f"{name}.toml").read_text())["invariant"] for name in MUTANTS}
    assert covered >= {1, 2, 3, 4, 6, 7, 9}


def test_every_patch_still_applies() -> None:
    """Told here in a second, and not only where the mutants run."""
    check = ["git", "apply", "--check"]
    applied = {
        name: subprocess.run([*check, str(HERE / f"{name}.patch")], cwd=REPO, capture_output=True, check=False)
        for name in MUTANTS
    }
    assert [name for name, result in applied.items() if result.returncode] == [], "regenerate them"


def copy_of_the_code(folder: Path) -> None:
    for name in ("src", "tests", "examples"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", folder)


def run_tests(folder: Path, tests: list[str], timeout_s: float = 1200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.mark.mutant
def test_the_property_tests_pass_in_an_unbroken_copy(tmp_path: Path) -> None:
    """Without this, a mutant could be noticed only because its test cannot run in the copy."""
    copy_of_the_code(tmp_path)
    tests = sorted({tomllib.loads((HERE / f"{name}.toml").read_text())["test"] for name in MUTANTS})
    # One after the other, and so far more than one of them takes.
    result = run_tests(tmp_path, tests, timeout_s=3600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


def break_and_test(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    copy_of_the_code(folder)
    patch = ["git", "apply", "--verbose", str(HERE / f"{name}.patch")]
    applied = subprocess.run(patch, cwd=folder, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, f"{name}.patch no longer applies; regenerate it:\n{applied.stderr}"
    return run_tests(folder, [tomllib.loads((HERE / f"{name}.toml").read_text())["test"]])


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Every mutant that was asked for, one a core at a time: most of each run is importing."""
    asked = [name for name in MUTANTS if any(item.name.endswith(f"[{name}]") for item in request.session.items)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(break_and_test, name, tmp_path_factory.mktemp(name)) for name in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_the_property_test_fails_on_the_broken_code(
    name: str, runs: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    result = runs[name].result()
    # 1 is "tests failed"; 2, 4 and 5 would mean that pytest could not even run it.
    assert result.returncode == 1, f"{name} was not noticed:\n{result.stdout[-3000:]}{result.stderr[-1000:]}"
    assert " failed" in result.stdout, result.stdout[-2000:]
