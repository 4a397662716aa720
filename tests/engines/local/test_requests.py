"""How single requests end, are refused and are dropped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from longrein.engines.local import wire
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.fused import unlike_llama
from longrein.engines.local.model import LocalModel, load_model
from longrein.errors import ConfigError, EngineError
from tests import tiny
from tests.engines.local.reference import Driver, forward_logprobs, ids, random_ids, request


def test_a_stop_token_ends_the_completion_and_stays_in_it(llama: LocalModel) -> None:
    (free,) = Driver(llama).run(request("c", random_ids(0, 9), max_tokens=30))
    stop = int(free.token_ids[6])
    (stopped,) = Driver(llama).run(request("c", random_ids(0, 9), max_tokens=30, stop_token_ids=(stop,)))
    assert stopped.finish_reason == "stop"
    assert free.finish_reason == "length"
    assert stopped.token_ids.tolist() == free.token_ids[: free.token_ids.tolist().index(stop) + 1].tolist()


def test_a_stop_string_that_spans_tokens_ends_the_completion(llama: LocalModel) -> None:
    tokenizer = tiny.tokenizer()
    prompt = random_ids(0, 9)
    for seed in range(100):
        (free,) = Driver(llama).run(request("c", prompt, max_tokens=40, seed=seed))
        texts = [tokenizer.decode([token]) for token in free.token_ids]
        pairs = [i for i in range(1, 39) if (texts[i] + texts[i + 1]).isascii() and (texts[i] + texts[i + 1]).isalpha()]
        if pairs:
            break
    text = texts[pairs[0]] + texts[pairs[0] + 1]
    (stopped,) = Driver(llama).run(request("c", prompt, max_tokens=40, seed=seed, stop=("zzzz", text)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free.token_ids[: pairs[0] + 2].tolist()


def test_max_tokens_is_clamped_to_the_room_in_the_context(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 1019)
    (full,) = driver.run(request("c", prompt, max_tokens=1000))
    assert (full.token_ids.size, full.finish_reason) == (5, "length")
    np.testing.assert_allclose(full.logprobs, forward_logprobs(llama.module, prompt, full.token_ids), atol=1e-4)


@pytest.mark.parametrize(
    ("prompt", "sampling", "kind", "message"),
    [
        ([], {}, wire.RefusedRequest, "empty"),
        ([3, 264], {}, wire.RefusedRequest, "id 264"),
        ([3, -1], {}, wire.RefusedRequest, "id -1"),
        ([3], {"max_tokens": 0}, wire.RefusedRequest, "max_tokens=0"),
        ([3], {"temperature": -0.1}, wire.RefusedRequest, "temperature=-0.1"),
        ([3], {"temperature": float("nan")}, wire.RefusedRequest, "temperature=nan"),
        ([3], {"top_p": 0.0}, wire.RefusedRequest, "top_p=0.0"),
        ([3], {"top_k": -1}, wire.RefusedRequest, "top_k=-1"),
        ([3], {"min_p": 1.5}, wire.RefusedRequest, "min_p=1.5"),
        ([3], {"seed": -1}, wire.RefusedRequest, "seed=-1"),
        ([3] * 1024, {}, wire.RefusedContext, "1024 tokens leaves no room in the context of 1024"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    llama: LocalModel, prompt: list[int], sampling: dict[str, object], kind: type, message: str
) -> None:
    driver = Driver(llama)
    ticket = driver.submit(request("c", ids(prompt), **sampling))
    reply = driver.finish()[ticket]
    assert isinstance(reply, kind)
    assert message in reply.message


def test_a_cancelled_request_makes_room_at_the_next_step(llama: LocalModel) -> None:
    driver = Driver(llama, max_batch=2)
    hogs = [driver.submit(request(f"hog{i}", random_ids(i, 5), max_tokens=900)) for i in range(2)]
    short = driver.submit(request("short", random_ids(9, 5), max_tokens=2))
    for _ in range(3):
        driver.scheduler.step()
    assert driver.scheduler.take_answers() == []
    driver.scheduler.cancel(hogs[0])
    # Out it goes, in comes the other: its prompt, and two tokens.
    for _ in range(4):
        driver.scheduler.step()
    assert [answer.ticket for answer in driver.scheduler.take_answers()] == [short]
    driver.scheduler.disconnect(0)
    driver.scheduler.step()
    assert driver.scheduler.idle


def test_a_request_cancelled_while_it_waits_or_is_prefilled_is_gone(llama: LocalModel) -> None:
    driver = Driver(llama, max_batch=1)
    prefilling = driver.submit(request("a", random_ids(0, 900)))
    waiting = driver.submit(request("b", random_ids(1, 5)))
    driver.scheduler.step()
    driver.scheduler.cancel(prefilling)
    driver.scheduler.cancel(waiting)
    assert driver.scheduler.idle
    assert driver.finish() == {}


def test_bfloat16_reports_float32_logprobs_close_to_the_forward(folder_of: Callable[[str], Path]) -> None:
    model = load_model(LocalEngineConfig(model=str(folder_of("qwen3")), dtype="bfloat16"))
    (one,) = Driver(model).run(request("c", random_ids(0, 20)))
    assert one.logprobs.dtype == np.float32
    np.testing.assert_allclose(
        one.logprobs, forward_logprobs(model.module, random_ids(0, 20), one.token_ids), atol=0.05
    )


def test_a_model_with_a_sliding_window_is_refused_unless_the_context_fits_in_it(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path, "mistral", sliding_window=64)
    with pytest.raises(EngineError, match="sliding window of 64"):
        load_model(LocalEngineConfig(model=str(folder)))
    model = load_model(LocalEngineConfig(model=str(folder), context_length=64))
    (one,) = Driver(model).run(request("c", random_ids(0, 40), max_tokens=100))
    assert one.token_ids.size == 24
    np.testing.assert_allclose(
        one.logprobs, forward_logprobs(model.module, random_ids(0, 40), one.token_ids), atol=1e-4
    )


def test_a_context_longer_than_the_models_is_refused(folder_of: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="more than the 1024 positions"):
        load_model(LocalEngineConfig(model=str(folder_of("llama")), context_length=4096))


@pytest.mark.parametrize("field", [{"threads": 0}, {"max_batch": 0}, {"cache_tokens": -1}, {"context_length": 1}])
def test_impossible_configurations_are_refused(field: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        LocalEngineConfig(model="x", **field)


def test_weights_that_lack_a_layer_are_no_model(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(EngineError, match=r"lack model\.layers\.2\..* \(of 9 tensors\), which would be random"):
        load_model(LocalEngineConfig(model=str(folder)))


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        (
            "phi3",
            {
                "original_max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "short_factor": [1.0] * 8,
                    "long_factor": [4.0] * 8,
                },
            },
            "rotary positions of type longrope, which this engine computes exactly within 64 tokens",
        ),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "window_size": 64}, "local attention.* within 64"),
        ("falcon", {"alibi": True}, "alibi positions"),
    ],
    ids=["longrope", "local", "alibi"],
)
def test_positions_that_depend_on_what_is_fed_at_once_are_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], says: str
) -> None:
    folder = tiny.save_model(tmp_path, family, **changes)
    with pytest.raises(EngineError, match=says):
        load_model(LocalEngineConfig(model=str(folder), context_length=512))


def test_queries_scaled_by_their_position_are_left_to_the_library(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path, "llama")
    model = load_model(LocalEngineConfig(model=str(folder), threads=1)).module
    assert unlike_llama(model) == ""
    model.config.rope_parameters = {**model.config.rope_parameters, "llama_4_scaling_beta": 0.1}
    assert unlike_llama(model) == "its queries are scaled by their position"


@pytest.mark.parametrize("changes", [{"vocab_size": 270}, {"context_length": 3}], ids=["vocabulary", "context"])
def test_the_smallest_models_start(tmp_path: Path, changes: dict[str, int]) -> None:
    context_length = changes.pop("context_length", 64)
    folder = tiny.save_model(tmp_path, "llama", **changes)
    model = load_model(LocalEngineConfig(model=str(folder), context_length=context_length))
    (one,) = Driver(model).run(request("c", random_ids(0, 2), max_tokens=1))
    assert one.token_ids.size == 1


def test_a_temperature_that_would_overflow_is_refused(llama: LocalModel) -> None:
    with pytest.raises(AssertionError, match=r"sampling\.temperature=1e-46 is out of range"):
        Driver(llama).run(request("c", random_ids(0, 9), temperature=1e-46))


def test_numbers_that_are_none_stay_with_the_request_that_made_them(tmp_path: Path) -> None:
    """Its row goes, and the next one moves into its room; a longer neighbour makes the pass read all of it."""
    folder = tiny.save_model(tmp_path, "llama", tie_word_embeddings=False)
    model = load_model(LocalEngineConfig(model=str(folder), threads=1))
    with torch.no_grad():
        cast(Any, model.module).get_input_embeddings().weight[200] = float("nan")
    model.refresh()
    driver = Driver(model)
    long = random_ids(0, 90) % 150 + 3
    short = random_ids(1, 12) % 150 + 3
    bad = random_ids(2, 40) % 150 + 3
    bad[-1] = 200
    wanted = [request(name, ids) for name, ids in (("bad", bad), ("long", long), ("short", short))]
    tickets = [driver.submit(one) for one in wanted]
    replies = driver.finish()
    assert [type(replies[ticket]).__name__ for ticket in tickets] == ["Failed", "Done", "Done"]
