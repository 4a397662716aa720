"""A real server that somebody started who does not know what training needs: refused by the names of the flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.requirements import require_updates
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import EngineError
from tests import tiny
from tests.engines.vllm import rig

pytestmark = pytest.mark.vllm


async def test_a_server_started_without_the_flags_is_refused_by_name(tmp_path: Path) -> None:
    """As somebody starts it who does not know what training needs."""
    model = rig.save_model(tmp_path / "model")
    with rig.started(tmp_path, model, rig.BARE, {}) as (url, _):
        with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
            await rig.spec(url, model=model).connect()
        with pytest.raises(EngineError, match=f"--max-model-len {2 * rig.CONTEXT}"):
            await VllmEngineSpec(urls=(url,), model=str(model), context_length=2 * rig.CONTEXT).connect()
        with (
            ServerControl(url, ControlTimeouts()) as server,
            pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"),
        ):
            require_updates(server)
        other = tiny.save_model(tmp_path / "other", vocab_size=300)
        (other / "tokenizer.json").write_text((model / "tokenizer.json").read_text().replace('"a":', '"ZZ":'))
        with pytest.raises(EngineError, match="tokenizer gives"):
            await rig.spec(url, model=other).connect()
