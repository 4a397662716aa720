"""``/v1/completions`` with the official SDK."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from tests.serve.rig import CONTEXT, Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXTRA: dict[str, Any] = {"return_token_ids": True, "ignore_eos": True}


async def complete(rig: Rig, prompt: Any, **options: Any) -> Any:
    options = {"model": "tiny", "max_tokens": 20, "seed": 4, "extra_body": EXTRA, **options}
    return await rig.openai.completions.create(prompt=prompt, **options)


async def test_ids_in_are_the_token_routes_own(rig: Rig) -> None:
    wanted = await rig.generate([5, 6, 7], max_tokens=20, seed=4)
    answer = await complete(rig, [5, 6, 7], logprobs=1)
    choice = answer.choices[0]
    assert choice.token_ids == wanted["token_ids"]
    assert choice.prompt_token_ids == [5, 6, 7]
    assert choice.logprobs.token_logprobs == [entry["logprob"] for entry in wanted["logprobs"]["content"]]
    assert choice.text == rig.tokenizer.decode(wanted["token_ids"], skip_special_tokens=True)
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 20, 23)
    assert [set(top.values()) for top in choice.logprobs.top_logprobs] == [
        {value} for value in choice.logprobs.token_logprobs
    ]


async def test_text_in_is_tokenised(rig: Rig) -> None:
    answer = await complete(rig, "hello")
    assert answer.choices[0].prompt_token_ids == rig.tokenizer.encode("hello")


@pytest.mark.parametrize("stop", [None, ["e"], ["the end"]])
async def test_a_stream_is_the_whole_in_pieces(rig: Rig, stop: list[str] | None) -> None:
    for seed in range(6):
        whole = await complete(rig, "hello", logprobs=1, seed=seed, max_tokens=60, stop=stop)
        chunks = []
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await complete(rig, "hello", logprobs=1, seed=seed, max_tokens=60, stop=stop, **options):
            chunks.append(chunk)
        choices = [chunk.choices[0] for chunk in chunks[:-1]]
        assert "".join(choice.text for choice in choices) == whole.choices[0].text
        assert [token for choice in choices for token in choice.token_ids] == whole.choices[0].token_ids
        logprobs = [value for choice in choices for value in choice.logprobs.token_logprobs]
        offsets = [value for choice in choices for value in choice.logprobs.text_offset]
        assert logprobs == whole.choices[0].logprobs.token_logprobs
        assert offsets == whole.choices[0].logprobs.text_offset
        assert choices[-1].finish_reason == whole.choices[0].finish_reason
        # How many tokens come in one piece is up to the machine.
        assert choices[0].prompt_token_ids and not any(choice.prompt_token_ids for choice in choices[1:])
        assert chunks[-1].usage.completion_tokens == len(logprobs)


async def test_a_stop_string_is_cut_from_the_text_alone(rig: Rig) -> None:
    plain = await complete(rig, [5, 6, 7], max_tokens=60)
    text = plain.choices[0].text
    stop = next(char for char in text[5:] if char.isascii() and char.isprintable())
    cut = (await complete(rig, [5, 6, 7], max_tokens=60, stop=stop)).choices[0]
    assert cut.text == text[: text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == plain.choices[0].token_ids[: len(cut.token_ids)]
    assert stop in rig.tokenizer.decode(cut.token_ids)
    kept = await complete(
        rig, [5, 6, 7], max_tokens=60, stop=stop, extra_body={**EXTRA, "include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == cut.text + stop


async def test_prompts_and_choices_multiply(rig: Rig) -> None:
    answer = await complete(rig, [[5, 6], [7, 8, 9]], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.prompt_token_ids for choice in answer.choices] == [[5, 6], [5, 6], [7, 8, 9], [7, 8, 9]]
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 4
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 80)
    texts = await complete(rig, ["ab", "c"])
    assert len(texts.choices) == 2


async def test_tokens_can_be_written_as_ids(rig: Rig) -> None:
    extra = {**EXTRA, "return_tokens_as_token_ids": True}
    choice = (await complete(rig, [5], logprobs=0, extra_body=extra)).choices[0]
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in choice.token_ids]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": [[1], 2]}, "mixes"),
        ({"prompt": [1, 9999]}, "9999"),
        ({"prompt": [1] * CONTEXT}, "maximum context length is 512"),
        ({"max_tokens": CONTEXT}, "maximum context length is 512"),
        ({"logprobs": 3}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"n": 1000}, "n must be"),
        ({"prompt": [[1]] * 100, "n": 100}, "100 prompts with n=100 are more than 1024"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format"),
    ],
)
async def test_what_cannot_be_done_is_refused(rig: Rig, options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        await complete(rig, **{"prompt": [1], **options})
    assert (await complete(rig, [1])).choices[0].finish_reason == "length"


async def test_another_model_is_not_there(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="`gpt-9` does not exist"):
        await complete(rig, [1], model="gpt-9")
