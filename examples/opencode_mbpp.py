"""OpenCode learns MBPP: the real agent in its sandbox, hidden tests as the reward, asynchronous GRPO.

This is TRL's script for harness rollouts with its two TRL imports changed. Start a server first, either

    VLLM_SERVER_DEV_MODE=1 vllm serve Qwen/Qwen3-1.7B --max-model-len 32768 --enable-scale-out \
        --logprobs-mode processed_logprobs --generation-config vllm

or, without vLLM, ``longrein serve RUN.toml`` with the same model and ``context_length = 32768``. Then

    make agents && pip install 'longrein[train,trackio]'
    python examples/opencode_mbpp.py
"""

from opencode_mbpp_parts import MODEL, VLLM_URL, build_dataset, build_factory
from transformers import AutoTokenizer

from longrein import AsyncGRPOConfig, AsyncGRPOTrainer, HarnessRolloutWorker


def main():
    dataset = build_dataset()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    worker = HarnessRolloutWorker(
        harness_session_factory=build_factory(),
        harness_adapter=None,
        model_name=MODEL,
        dataset=dataset,
        reward_funcs=[],
        processing_class=tokenizer,
        num_generations=4,
        max_inflight_tasks=4,
        vllm_server_url=VLLM_URL,
        max_tokens=16384,
        temperature=1.0,
        fork_threshold_tokens=1024,
        log_completions=True,
        num_completions_to_print=2,
    )
    config = AsyncGRPOConfig(
        output_dir="runs/opencode-mbpp",
        save_strategy="no",
        per_device_train_batch_size=4,
        num_generations=4,
        gradient_accumulation_steps=1,
        max_completion_length=16384,
        max_steps=10,
        learning_rate=1e-5,
        vllm_server_base_url=VLLM_URL,
        report_to="trackio",
        project="opencode-mbpp",
        log_completions=True,
    )
    AsyncGRPOTrainer(
        model=MODEL, args=config, train_dataset=dataset, processing_class=tokenizer, rollout_worker=worker
    ).train()


if __name__ == "__main__":
    main()
