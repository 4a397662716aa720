"""Check: the engine and the gateway mean the same by a token id."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.engines.base import Engine, EngineSpec, TokenizingEngine
from longrein.engines.render import ChatRenderer
from longrein.errors import EngineRouteError
from longrein.types import I32

PROBE = "Pull 12,345 kg — über zwei Hügel; 馬車 <b>x</b>\n\tif a != b: return 🐎"
"""Digits, accents, other scripts, markup, white space and an emoji: where tokenizers differ."""
FIX = "give the engine and the run file (model.path) the same model folder"


class Tokenizer:
    """Compares the ids of a text and the vocabularies."""

    about = About(name="tokenizer", certifies="the engine's tokenizer is the run's: same ids for the same text")

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer) -> None:
        self._spec = spec
        self._renderer = renderer

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        engine = await self._spec.connect()
        try:
            return await self._compare(engine)
        finally:
            await engine.close()

    async def _compare(self, engine: Engine) -> Verdict:
        info = await engine.info()
        largest = self._renderer.vocab_size
        if info.vocab_size < largest:
            return failed(f"the run's tokenizer has {largest} tokens, the engine's model only {info.vocab_size}", FIX)
        if isinstance(engine, TokenizingEngine):
            try:
                return self._same_ids(await engine.tokenize(PROBE), "the engine")
            except EngineRouteError as error:
                return cannot_tell(f"the engine does not tokenize: {error}", "the check 'model' compares logprobs")
        if not Path(info.model).is_dir():
            return cannot_tell(
                f"the engine calls its model {info.model!r} and does not tokenize",
                "the check 'model' compares its logprobs with those of the run's own model",
            )
        theirs = ChatRenderer.load(info.model, chat_template="{{ messages }}")
        if theirs.vocabulary != self._renderer.vocabulary:
            return failed(f"the vocabulary of {info.model} is not that of the run's tokenizer", FIX)
        return self._same_ids(theirs.encode(PROBE), info.model)

    def _same_ids(self, theirs: I32, whose: str) -> Verdict:
        ours = self._renderer.encode(PROBE)
        if not np.array_equal(ours, theirs):
            return failed(
                f"a probe text has ids {ours[:8].tolist()}... here and {theirs[:8].tolist()}... in {whose}", FIX
            )
        return passed(f"the {ours.size} ids of a probe text are equal; vocabulary {self._renderer.vocabulary[:12]}")
