"""The check of the template passes on good ones and notices what each bad one does."""

from __future__ import annotations

import pytest

from longrein.doctor.result import Verdict
from longrein.doctor.template import Template
from longrein.rollout.runtime import TokenizerSpec
from tests import tiny


async def examined(template: str, tool_parser: str = "auto") -> Verdict:
    return await Template(TokenizerSpec(tokenizer=tiny.tokenizer(template), tool_parser=tool_parser)).run()


async def test_a_good_template_passes() -> None:
    verdict = await examined(tiny.CHATML)
    assert verdict.status == "pass", verdict
    assert verdict.seen.count("without drift") == 2


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}"
)
END = "<|im_end|>\n"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def loop(body: str) -> str:
    return "{% for m in messages %}" + body + "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        pytest.param(loop(TURN + CALLS + END) + OPEN, "does not show the tool", id="no-tools"),
        pytest.param(TOOLS + loop(TURN + END) + OPEN, "is not read as one", id="calls-left-out"),
        pytest.param(
            TOOLS + loop(TURN + CALLS.replace("tool_call>", "invoke>") + END) + OPEN,
            "is not read as one",
            id="calls-in-another-format",
        ),
        pytest.param(
            TOOLS + loop("{% if m.role != 'tool' %}" + TURN + CALLS + END + "{% endif %}") + OPEN,
            "leaves out the words of a new tool message",
            id="results-left-out",
        ),
        pytest.param(
            TOOLS
            + loop(TURN + "{% if not loop.last and m.role == 'assistant' %} (earlier){% endif %}" + CALLS + END)
            + OPEN,
            "a new tool message starts a new branch each time",
            id="earlier-turns-rewritten",
        ),
        pytest.param(
            TOOLS
            + loop("{{ m.role }}: {{ m.content }}" + CALLS + "\n")
            + "{% if add_generation_prompt %}assistant: {% endif %}",
            "starts a new branch each time",
            id="no-end-token",
        ),
    ],
)
async def test_a_bad_template_is_told(template: str, said: str) -> None:
    verdict = await examined(template)
    assert verdict.status == "fail", verdict
    assert said in verdict.seen, verdict
    assert verdict.fix, verdict


async def test_a_parser_of_another_format_is_told() -> None:
    verdict = await examined(tiny.CHATML, tool_parser="glm")
    assert verdict.status == "fail", verdict
    assert "tool_parser" in verdict.fix
