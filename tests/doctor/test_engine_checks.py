"""Each check of the engine passes on real engines, and notices the lie that it is for."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from longrein.doctor.context import ContextLength
from longrein.doctor.logprobs import Logprobs
from longrein.doctor.model import Model
from longrein.doctor.prefix_cache import PrefixCache, Turns, judged
from longrein.doctor.reachable import Reachable
from longrein.doctor.result import Verdict
from longrein.doctor.sampling_defaults import SamplingDefaults
from longrein.doctor.stops import Stops
from longrein.doctor.tokenizer import Tokenizer
from longrein.doctor.weight_sync import WeightSync
from longrein.engines.base import Engine, EngineRequest, EngineSpec, WeightReceiver
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.render import ChatRenderer
from longrein.train.adapter_probe import adapter_probe
from longrein.train.adapters import lora_config
from longrein.train.folder_weights import folder_weights
from longrein.types import Completion
from tests import tiny
from tests.doctor import liars


def assert_fails(verdict: Verdict, said: str) -> None:
    assert verdict.status == "fail", verdict
    assert said in verdict.seen, verdict
    assert verdict.fix, verdict


def assert_passes(verdict: Verdict) -> None:
    assert verdict.status == "pass", verdict
    assert verdict.seen
    assert not verdict.fix


CHECKS: dict[str, Callable[[EngineSpec, ChatRenderer, Path], object]] = {
    "engine": lambda spec, renderer, folder: Reachable(spec, renderer),
    "tokenizer": lambda spec, renderer, folder: Tokenizer(spec, renderer),
    "model": lambda spec, renderer, folder: Model(spec, renderer, str(folder), "float32"),
    "logprobs": lambda spec, renderer, folder: Logprobs(spec, renderer, 1.0),
    "sampling_defaults": lambda spec, renderer, folder: SamplingDefaults(spec, renderer, str(folder)),
    "context": lambda spec, renderer, folder: ContextLength(spec, renderer, 1024),
    "stops": lambda spec, renderer, folder: Stops(spec, renderer),
    "prefix_cache": lambda spec, renderer, folder: PrefixCache(spec, renderer, 1024),
}


async def examined(name: str, spec: EngineSpec, renderer: ChatRenderer, folder: Path) -> Verdict:
    check = CHECKS[name](spec, renderer, folder)
    return await check.run()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CHECKS)
async def test_the_embedded_engine_passes(
    name: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    assert_passes(await examined(name, engine.spec, renderer, folder))


@pytest.mark.parametrize("name", ["engine", "model", "logprobs", "sampling_defaults", "stops"])
async def test_another_honest_engine_passes(name: str, renderer: ChatRenderer, folder: Path) -> None:
    assert_passes(await examined(name, liars.PlainEngine(folder), renderer, folder))


@pytest.mark.parametrize("name", ["logprobs", "sampling_defaults"])
async def test_an_engine_that_refuses_hot_temperatures_passes(
    name: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    assert_passes(await examined(name, liars.Between(engine.spec, liars.UpToTwo), renderer, folder))


@pytest.mark.parametrize(("hidden", "status"), [({"top_p": 0.9}, "fail"), ({"top_k": 50}, "cannot tell")])
async def test_hidden_sampling_defaults_of_an_engine_that_refuses_hot_temperatures(
    hidden: dict[str, float], status: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    lies = liars.Between(engine.spec, partial(liars.Resampled, **hidden))
    verdict = await examined("sampling_defaults", liars.Between(lies, liars.UpToTwo), renderer, folder)
    assert verdict.status == status


def shifted(by: int, completion: Completion, _request: EngineRequest) -> Completion:
    return msgspec.structs.replace(completion, logprobs=np.roll(completion.logprobs, by))


@pytest.mark.parametrize("by", [1, -1])
async def test_logprobs_shifted_by_one(
    by: int, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    spec = liars.Between(engine.spec, partial(liars.Retold, retell=partial(shifted, by)))
    assert_fails(await examined("logprobs", spec, renderer, folder), f"shifted by {by:+d}")


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (liars.Untempered, "do not change with the temperature"),
        (liars.TemperatureForgotten, "tokens do not come as often as their logprobs say"),
        (partial(liars.SilentlyTruncated, kept=20), "tokens do not come as often as their logprobs say"),
        (liars.Restless, "nats apart"),
    ],
)
async def test_logprobs_of_another_distribution(
    liar: Callable[[Path], EngineSpec], said: str, renderer: ChatRenderer, folder: Path
) -> None:
    assert_fails(await examined("logprobs", liar(folder), renderer, folder), said)


async def test_a_temperature_that_is_ignored(engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path) -> None:
    """Sampled at 1 and reported at 1: consistent in itself, and not what was asked."""
    spec = liars.Between(engine.spec, partial(liars.Resampled, temperature=1.0))
    assert_fails(await examined("logprobs", spec, renderer, folder), "do not change with the temperature")


@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        ({"top_k": 50}, "only about 50 of 264 tokens can come"),
        ({"top_p": 0.9}, "unlikely tokens are cut off"),
        ({"top_p": 0.97}, "unlikely tokens are cut off"),
        ({"min_p": 0.05}, "unlikely tokens are cut off"),
    ],
)
async def test_hidden_sampling_defaults(
    hidden: dict[str, float], said: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    """The logprobs are those of the truncated distribution: in themselves all is well."""
    spec = liars.Between(engine.spec, partial(liars.Resampled, **hidden))
    assert_fails(await examined("sampling_defaults", spec, renderer, folder), said)


async def test_a_hidden_top_k_with_logprobs_of_all(renderer: ChatRenderer, folder: Path) -> None:
    spec = liars.SilentlyTruncated(folder, kept=50)
    assert_fails(await examined("sampling_defaults", spec, renderer, folder), "only 4")


async def test_a_generation_config_is_named(engine: LocalEngineProcess, renderer: ChatRenderer, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 20, "temperature": 1.0, "repetition_penalty": 1.1}')
    verdict = await examined("sampling_defaults", engine.spec, renderer, tmp_path)
    assert verdict.status == "pass"
    assert "asks for top_k=20, repetition_penalty=1.1" in verdict.seen


async def test_a_hidden_repetition_penalty_shows_in_the_model(renderer: ChatRenderer, folder: Path) -> None:
    verdict = await examined("model", liars.Penalises(folder), renderer, folder)
    assert_fails(verdict, "nats between engine and trainer")


async def test_the_weights_of_another_model(engine: LocalEngineProcess, renderer: ChatRenderer, tmp_path: Path) -> None:
    other = tiny.save_model(tmp_path / "other", seed=1)
    assert_fails(await examined("model", engine.spec, renderer, other), "nats between engine and trainer")


async def test_another_tokenizer_in_the_engines_folder(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path, tmp_path: Path
) -> None:
    other = tiny.tokenizer()
    other.add_tokens(["long reins"])
    other.save_pretrained(tmp_path)
    spec = liars.Between(engine.spec, partial(liars.OtherInfo, model=str(tmp_path)))
    assert_fails(await examined("tokenizer", spec, renderer, folder), "the vocabulary of")


async def test_an_engine_that_tokenizes_otherwise(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    spec = liars.Between(engine.spec, partial(liars.Tokenizes, encode=lambda text: renderer.encode(text) + 1))
    assert_fails(await examined("tokenizer", spec, renderer, folder), "a probe text has ids")
    honest = liars.Between(engine.spec, partial(liars.Tokenizes, encode=renderer.encode))
    assert_passes(await examined("tokenizer", honest, renderer, folder))


async def test_an_engine_whose_vocabulary_is_too_small(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    spec = liars.Between(engine.spec, partial(liars.OtherInfo, vocab_size=100))
    assert_fails(await examined("tokenizer", spec, renderer, folder), "the engine's model only 100")


async def test_an_engine_that_is_only_a_name(engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path) -> None:
    spec = liars.Between(engine.spec, partial(liars.OtherInfo, model="served-name"))
    assert (await examined("tokenizer", spec, renderer, folder)).status == "cannot tell"


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (partial(liars.CutsPrompts, kept=512), "more than the engine says it can, was answered"),
        (liars.ServesLess, "is refused: a prompt of more than 500"),
        (partial(liars.OtherInfo, context_length=512), "the engine serves 512 tokens"),
    ],
)
async def test_a_context_that_is_not_served(
    liar: Callable[[Engine], Engine], said: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    assert_fails(await examined("context", liars.Between(engine.spec, liar), renderer, folder), said)


async def test_a_prompt_whose_beginning_is_not_read(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    class CutsButRefuses(liars.CutsPrompts):
        async def generate(self, request: EngineRequest) -> Completion:
            return await (self.inner if request.prompt_ids.size > 1023 else super()).generate(request)

    spec = liars.Between(engine.spec, partial(CutsButRefuses, kept=1000))
    assert_fails(await examined("context", spec, renderer, folder), "change nothing")


def without_stop(completion: Completion, _request: EngineRequest) -> Completion:
    if completion.finish_reason != "stop":
        return completion
    return msgspec.structs.replace(completion, token_ids=completion.token_ids[:-1], logprobs=completion.logprobs[:-1])


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (partial(liars.Resampled, stop_token_ids=()), "sampling went on"),
        (partial(liars.Resampled, max_tokens=12), "max_tokens=1 gave 12 tokens"),
        (partial(liars.Retold, retell=without_stop), "is missing from the completion"),
    ],
)
async def test_stops_that_are_not_honoured(
    liar: Callable[[Engine], Engine], said: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    assert_fails(await examined("stops", liars.Between(engine.spec, liar), renderer, folder), said)


async def test_an_engine_without_a_prefix_cache(
    renderer: ChatRenderer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_s = 0.0

    class Large(liars.PlainEngine):
        """As slow as a large model is, by a clock that nothing else moves."""

        async def generate(self, request: EngineRequest) -> Completion:
            nonlocal spent_s
            spent_s += 3e-4 * request.prompt_ids.size
            return await super().generate(request)

    clock = SimpleNamespace(perf_counter=lambda: spent_s, time_ns=time.time_ns)
    monkeypatch.setattr("longrein.doctor.prefix_cache.time", clock)

    verdict = await examined("prefix_cache", Large(folder), renderer, folder)
    assert_fails(verdict, "a second one of 522 tokens")
    assert "prefix cache" in verdict.fix


@pytest.mark.parametrize(("cache_tokens", "status"), [(0, "fail"), (4096, "pass")])
async def test_a_prefix_cache_that_is_off(
    cache_tokens: int, status: str, renderer: ChatRenderer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_s = 0.0

    def as_of_a_large_model(completion: Completion, request: EngineRequest) -> Completion:
        """By a clock that only goes by with what the engine computes."""
        nonlocal spent_s
        spent_s += 3e-4 * completion.prefill_tokens
        return completion

    clock = SimpleNamespace(perf_counter=lambda: spent_s, time_ns=time.time_ns)
    monkeypatch.setattr("longrein.doctor.prefix_cache.time", clock)
    with LocalEngineProcess(LocalEngineConfig(model=str(folder), threads=1, cache_tokens=cache_tokens)) as process:
        spec = liars.Between(process.spec, partial(liars.Retold, retell=as_of_a_large_model))
        assert (await examined("prefix_cache", spec, renderer, folder)).status == status


@pytest.mark.parametrize(
    ("first_s", "second_s", "computed", "status"),
    [
        (0.5, 0.1, 600, "pass"),
        (0.5, 0.3, 600, "cannot tell"),
        (0.5, 0.5, 600, "fail"),
        (0.5, 0.5, 0, "fail"),
        (0.01, 0.001, 600, "cannot tell"),
        (0.01, 0.01, 10, "pass"),
    ],
)
def test_time_decides_where_nothing_is_counted(first_s: float, second_s: float, computed: int, status: str) -> None:
    turns = Turns(first_s=first_s, second_s=second_s, second_computed=computed, prompt_tokens=600)
    assert judged([turns, turns, turns]).status == status


async def synced(receiver: WeightReceiver, spec: EngineSpec, renderer: ChatRenderer, folder: Path) -> Verdict:
    return await WeightSync(spec, receiver, partial(folder_weights, folder), renderer).run()


async def test_weights_arrive_and_leave_again(engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path) -> None:
    assert_passes(await synced(engine.weights, engine.spec, renderer, folder))
    assert_passes(await examined("model", engine.spec, renderer, folder))


async def test_weights_that_do_not_arrive(engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path) -> None:
    def renumbered(completion: Completion, _request: EngineRequest) -> Completion:
        return msgspec.structs.replace(completion, min_policy_version=1, max_policy_version=1)

    assert_fails(await synced(liars.Deaf(), engine.spec, renderer, folder), "say")
    current = await examined("engine", engine.spec, renderer, folder)
    assert_passes(current)


async def test_an_engine_that_ignores_the_second_update(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    try:
        verdict = await synced(liars.TakesOnce(engine.weights), engine.spec, renderer, folder)
    finally:
        assert_passes(await synced_back(engine, renderer, folder))
    assert_fails(verdict, "with the first weights published again")


async def adapted(receiver: WeightReceiver, spec: EngineSpec, renderer: ChatRenderer, folder: Path) -> Verdict:
    """Of a run whose adapters are added times 4."""
    config = lora_config(rank=4, alpha=16, dropout=0.0, target_modules=())
    weights = partial(folder_weights, folder)
    return await WeightSync(spec, receiver, weights, renderer, partial(adapter_probe, str(folder), config)).run()


async def test_adapters_arrive_and_leave_again(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    verdict = await adapted(engine.weights, engine.spec, renderer, folder)
    assert_passes(verdict)
    assert "an adapter changed them by" in verdict.seen
    assert_passes(await examined("model", engine.spec, renderer, folder))


async def test_an_engine_that_takes_no_adapters_gets_merged_weights(
    engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    class WholeOnly:
        def update(self, tensors: object, policy_version: int) -> None:
            engine.weights.update(tensors, policy_version)

    verdict = await adapted(WholeOnly(), engine.spec, renderer, folder)
    assert_passes(verdict)
    assert "adapter" not in verdict.seen


@pytest.mark.parametrize(
    ("liar", "said"),
    [
        (liars.DeafToAdapters, "an adapter was published and the logprobs stayed"),
        (liars.Unscaled, "from those of the same weights merged"),
        (liars.ForgetsTheVersion, "completions sampled with the adapter of version"),
    ],
)
async def test_adapters_that_do_not_arrive_as_they_are(
    liar: type[liars.TakesAdapters], said: str, engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path
) -> None:
    assert_fails(await adapted(liar(engine.weights), engine.spec, renderer, folder), said)
    assert_passes(await examined("model", engine.spec, renderer, folder))


async def synced_back(engine: LocalEngineProcess, renderer: ChatRenderer, folder: Path) -> Verdict:
    engine.weights.update(folder_weights(folder), 10_000)
    return await examined("model", engine.spec, renderer, folder)
