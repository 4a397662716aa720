"""What the documents say is run: TOML is loaded, Python is executed, tables name every key."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from longrein.config import RunConfig, Section, load_config

REPO = Path(__file__).parents[1]
PAGES = sorted([REPO / "README.md", REPO / "bench" / "README.md", *(REPO / "docs").rglob("*.md")])


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        for number, body in enumerate(re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)):
            found.append((f"{page.relative_to(REPO)}#{number}", body))
    return found


@pytest.mark.parametrize(("where", "body"), [pytest.param(*block, id=block[0]) for block in blocks("toml")])
def test_run_files_in_the_documents_are_valid(where: str, body: str, tmp_path: Path) -> None:
    if "output_dir" not in body:
        pytest.skip(f"{where} is no run file")
    path = tmp_path / "run.toml"
    path.write_text(body)
    assert load_config(path).output_dir


def test_every_key_of_the_run_file_is_documented() -> None:
    text = (REPO / "docs" / "run-file.md").read_text(encoding="utf-8")
    for field in msgspec.structs.fields(RunConfig):
        section = field.type
        if isinstance(section, type) and issubclass(section, Section):
            assert f"`[{field.name}]`" in text
            names = [inner.name for inner in msgspec.structs.fields(section)]
        else:
            names = [field.name]
        for name in names:
            assert f"`{name}`" in text, f"docs/run-file.md does not mention {field.name}.{name}"


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(REPO)} links to {target}"
