"""The environment that OpenEnv's wheel makes (``openenv init``), served by its own server, and our page about it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_docs import blocks


@pytest.fixture(scope="session")
def echo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("echo")


@pytest.fixture(scope="session")
def echo_url(echo_folder: Path) -> Iterator[str]:
    from examples.openenv_echo import environment

    with environment(echo_folder) as url:
        yield url


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The script of docs/openenv.md as a module, with its ``EchoFactory`` and its worker."""
    (_where, body) = next(block for block in blocks("python") if block[0].startswith("docs/openenv.md"))
    folder = tmp_path_factory.mktemp("page")
    (folder / "page_about_openenv.py").write_text(body)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("page_about_openenv")
    finally:
        sys.path.remove(str(folder))
