"""Command lines, run files and logs are shown without the secrets in them, and with all else."""

from __future__ import annotations

import pytest

from longrein.redaction import Secrets, hide, shown, shown_command


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["vllm", "--api-key", "s3cr3t", "--port", "8"], "vllm --api-key *** --port 8"),
        (["vllm", "--api-key", "one-s3cr3t", "two-s3cr3t", "--port", "8"], "vllm --api-key *** *** --port 8"),
        (["vllm", "--api-key=s3cr3t", "model"], "vllm --api-key=*** model"),
        (["env", "VLLM_API_KEY=s3cr3t", "vllm"], "env VLLM_API_KEY=*** vllm"),
        (["docker", "run", "-e", "HF_TOKEN=s3cr3t", "image"], "docker run -e HF_TOKEN=*** image"),
        (
            ["sh", "-c", "HF_TOKEN=s3cr3t exec vllm --api-key 's3cr3t' -v"],
            "sh -c HF_TOKEN=*** exec vllm --api-key '***' -v",
        ),
        (["vllm", "--header", "Authorization: Bearer s3cr3t"], "vllm --header Authorization: *** ***"),
        (["vllm", "--proxy", "http://me:s3cr3t@host:3128/"], "vllm --proxy http://me:***@host:3128/"),
        (["vllm", "--x", '{"apiKey": "s3cr3t", "n": 3}'], 'vllm --x {"apiKey": "***", "n": 3}'),
        (["vllm", "--hf-token"], "vllm --hf-token"),
    ],
)
def test_secrets_on_a_command_line_are_hidden(argv: list[str], wanted: str) -> None:
    assert shown_command(argv) == wanted


def test_what_is_no_secret_is_shown() -> None:
    argv = (
        *("vllm", "--max-num-batched-tokens", "8192", "--tokenizer", "gpt2", "--enable-prompt-tokens-details"),
        *("--ssl-keyfile", "/a/b.pem", "--weight-transfer-config", '{"backend": "nccl"}', "--port", "8000"),
        *("http://127.0.0.1:8000", "--max-tokens=5", "a: b"),
    )
    assert shown_command(argv) == " ".join(argv)


def test_values_of_a_run_file() -> None:
    engine = {"env": {"VLLM_API_KEY": 3, "A": "1"}, "command": ["vllm", "--api-key", 3], "api_key": "s3cr3t"}
    assert shown(engine) == {
        "env": {"VLLM_API_KEY": "***", "A": "1"},
        "command": ["vllm", "--api-key", "***"],
        "api_key": "***",
    }
    assert shown(("sh", "-c"), "argv") == ["sh", "-c"]
    assert (shown(0.5, "temperature"), shown(None, "api_key"), shown("", "token")) == (0.5, None, "")


def test_what_a_process_says_of_itself() -> None:
    secrets = Secrets(["vllm", "--api-key", "first-key", "second-key"], {"HF_TOKEN": "hf_123456", "LANG": "C.UTF-8"})
    said = "args: {'api_key': ['first-key', 'second-key']} C.UTF-8; 401 for hf_123456\nINFO vllm 0.32"
    assert secrets.hide(said) == "args: {'api_key': ['***', '***']} C.UTF-8; 401 for ***\nINFO vllm 0.32"
    traceback = "KeyError: 'lm_head.weight' at token = tokens[3]; key: 7"
    assert secrets.hide(traceback) == traceback
    assert hide("KeyError: 'lm_head.weight'") == "KeyError: 'lm_head.weight'"
