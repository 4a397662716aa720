"""The snippets of docs/serve.md, against a server."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.serve.rig import Rig

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
async def test_the_snippets_of_the_page_run(rig: Rig, number: int) -> None:
    code = SNIPPETS[number].replace("http://127.0.0.1:8000", rig.url)
    assert code != SNIPPETS[number]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, err.decode()
    assert out.strip()
