"""The script of ``docs/trl.md``, run with a tiny model, two steps, and what a CPU needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

pytestmark = pytest.mark.trl

REPO = Path(__file__).parents[3]
PREFIX = """
import pytest
from tests.integrations.trl.stand_ins import stand_in
stand_in(pytest.MonkeyPatch())
"""


def test_the_script_of_the_document_runs(tmp_path: Path) -> None:
    text = (REPO / "docs" / "trl.md").read_text(encoding="utf-8")
    body = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    model = tiny.save_model(tmp_path / "model")
    for old, new in {
        'MODEL = "models/smollm2"': f'MODEL = "{model}"',
        "max_steps=10,": 'max_steps=2, use_cpu=True, bf16=False, report_to="none", save_strategy="no",',
        '"runs/trl': f'"{tmp_path}/run',
    }.items():
        assert old in body
        body = body.replace(old, new)
    script = tmp_path / "script.py"
    # The rollout process imports the script, too, and needs no trainer.
    script.write_text(body.replace("    from trl", PREFIX.replace("\n", "\n    ") + "from trl", 1))
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO)])},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert list((tmp_path / "run" / "rollouts").glob("*.parquet"))
