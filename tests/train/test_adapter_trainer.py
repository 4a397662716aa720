"""The trainer from end to end with adapters: what trains, what is sent, what is saved, and how it goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from longrein.engines.base import AdapterSpec
from longrein.engines.local.adapted import AdaptedModule
from longrein.engines.local.adapters import AdaptableWeights
from longrein.engines.local.manifest import anonymous_file
from longrein.engines.local.weights import make_manifest
from longrein.errors import CheckpointError, ConfigError
from longrein.train.adapter_weights import base_weights, merged_weights
from longrein.train.folder_weights import folder_weights
from longrein.train.merged_folder import save_merged
from longrein.train.sft import SftConfig, train_sft
from longrein.train.trainer import AsyncGRPOTrainer
from tests import tiny
from tests.engines.local.reference import forward_logprobs, random_ids
from tests.train.continued import SeededSampler, arguments, digest, in_process, killed_at, whole_run
from tests.train.toy import row

# PEFT 0.21 reads an attribute that transformers has renamed; our own calls of it are quiet.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")


class AdapterSampler(SeededSampler):
    """Its copy of the model is an embedded engine's, adapters and all."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        manifest, file_descriptor = make_manifest(self._model), anonymous_file()
        engine = AdaptedModule(self._model, manifest, file_descriptor)
        self._weights = AdaptableWeights(manifest, file_descriptor, engine.take)
        self.received: list[tuple[str, int]] = []

    def update(self, tensors: object, policy_version: int) -> None:
        self._weights.update(tensors, policy_version)
        self.version = policy_version
        self.received.append(("whole", policy_version))

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        self._weights.update_adapter(tensors, spec, policy_version)
        self.version = policy_version
        self.received.append(("adapter", policy_version))


def lora(folder: Path, out: Path, sampler: SeededSampler | None = None, **changes: Any) -> AsyncGRPOTrainer:
    peft_config, model = changes.pop("peft_config", LORA), changes.pop("model", str(folder))
    worker = sampler or SeededSampler(str(folder))
    return AsyncGRPOTrainer(
        model=model,
        args=arguments(out, **changes),
        rollout_worker=worker,
        weight_receiver=worker,
        train_dataset=[0] * 2,
        peft_config=peft_config,
    )


def fresh(folder: Path) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in AutoModelForCausalLM.from_pretrained(folder).named_parameters()}


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGRPOTrainer:
    """A finished run, whose sampler takes whole weights only; nothing changes it."""
    out = tmp_path_factory.mktemp("done")
    made = lora(folder, out)
    made.train()
    return made


def test_only_adapters_train_and_the_sampler_agrees(done: AsyncGRPOTrainer, folder: Path) -> None:
    """The sampler checks names; its logprobs, of merged weights at lag 0, are the trainer's."""
    model: Any = done.model
    before, base, merged = fresh(folder), base_weights(model), merged_weights(model)
    assert {name.partition(".lora_")[1] for name, p in model.named_parameters() if p.grad is not None} <= {".lora_"}
    for name, tensor in base.items():
        assert torch.equal(tensor, before[name]), name
    changed = {name for name, tensor in merged.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if any(f"{target}.weight" in name for target in LORA.target_modules)}
    lines = [line for line in done.state.log_history if "loss" in line]
    assert len(lines) == 3
    assert max(line["logprob_gap_max"] for line in lines) < 1e-4
    assert any(line["tree_saving"] > 1 for line in lines), "shared prefixes are fed once"


def test_an_engine_that_takes_adapters_gets_the_base_once_and_samples_the_same(
    done: AsyncGRPOTrainer, folder: Path, tmp_path: Path
) -> None:
    sampler = AdapterSampler(str(folder))
    made = lora(folder, tmp_path, sampler)
    made.train()
    assert sampler.received == [("whole", 0), ("adapter", 0), ("adapter", 1), ("adapter", 2), ("adapter", 3)]
    lines = [line for line in made.state.log_history if "loss" in line]
    assert max(line["logprob_gap_max"] for line in lines) < 1e-4
    assert digest(made) == digest(done), "merged on either side of the street, by the same sum"
    again = AdapterSampler(str(folder))
    lora(folder, tmp_path, again).train(resume_from_checkpoint=True)
    assert again.received == [("whole", 3), ("adapter", 3)]


@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_ends_as_one_in_one_piece(
    done: AsyncGRPOTrainer, folder: Path, tmp_path: Path, stop: int
) -> None:
    checkpoint = Path(str(done.args.output_dir)) / f"checkpoint-{stop}"
    assert {path.name for path in checkpoint.glob("*.safetensors")} == {"adapter_model.safetensors"}
    resumed = lora(folder, tmp_path)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert digest(resumed) == digest(done)


@settings(
    deadline=None, max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(event=st.integers(1, 105))
def test_killed_at_any_file_operation_the_run_goes_on_to_the_same_end(
    done: AsyncGRPOTrainer, folder: Path, tmp_path_factory: pytest.TempPathFactory, event: int
) -> None:
    out = tmp_path_factory.mktemp("killed")
    _, code = in_process(killed_at, event, folder, out, LORA)
    assert code in (0, -signal.SIGKILL)
    assert in_process(whole_run, folder, out, LORA) == (digest(done), 0), f"killed at {event}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_config": LoraConfig(r=5, lora_alpha=10, target_modules=LORA.target_modules)}, "lora_A.*more tensors"),
        ({"peft_config": LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"])}, "shape"),
        ({"peft_config": LoraConfig(r=4, lora_alpha=9, target_modules=LORA.target_modules)}, "lora_scalings was"),
        ({"peft_config": None}, "shape"),
        ({"base": True}, "base_weights was '[0-9a-f]{16}' and is '"),
    ],
)
def test_adapters_of_another_run_are_refused(
    done: AsyncGRPOTrainer, folder: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    """Another rank, other targets, another alpha, none, or another base of the same shape."""
    if changes.pop("base", False):
        folder = tiny.save_model(tmp_path / "other", seed=1, hidden_size=32, intermediate_size=64)
    made = lora(folder, tmp_path / "out", **changes)
    with pytest.raises(CheckpointError, match=f"checkpoint-2 is of another run: .*{says}"):
        made.train(resume_from_checkpoint=str(Path(str(done.args.output_dir)) / "checkpoint-2"))


def test_save_model_writes_the_adapters_alone(done: AsyncGRPOTrainer, folder: Path, tmp_path: Path) -> None:
    done.save_model(str(tmp_path))
    assert not list(tmp_path.glob("model*.safetensors"))
    assert all(".lora_" in name for name in load_file(tmp_path / "adapter_model.safetensors"))
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path)
    for name, tensor in merged_weights(again).items():
        assert torch.equal(tensor, merged_weights(done.model)[name]), name


def test_the_merged_folder_is_a_whole_model(done: AsyncGRPOTrainer, tmp_path: Path) -> None:
    before = digest(done)
    save_merged(done, tmp_path)
    assert digest(done) == before
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.use_cache
    for name, tensor in merged_weights(done.model).items():
        assert torch.equal(model.get_parameter(name), tensor), name
        assert torch.equal(folder_weights(tmp_path)[name], tensor), name
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == done.processing_class.chat_template
    assert not list(tmp_path.glob("adapter*"))


def test_a_bfloat16_base_stays_bfloat16(folder: Path, tmp_path: Path) -> None:
    made = lora(folder, tmp_path / "run", max_steps=1, model_init_kwargs={"dtype": torch.bfloat16})
    model: Any = made.model
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    made.train()
    save_merged(made, tmp_path / "merged")
    saved = folder_weights(tmp_path / "merged")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    merged = merged_weights(model)["model.layers.0.mlp.up_proj.weight"]
    assert merged.dtype == torch.float32, "an engine rounds once, to its own dtype"


def test_a_loaded_peft_model_goes_on_and_its_adapters_are_sent_first(
    done: AsyncGRPOTrainer, folder: Path, tmp_path: Path
) -> None:
    done.save_model(str(tmp_path / "adapters"))
    base = AutoModelForCausalLM.from_pretrained(folder)
    model = PeftModel.from_pretrained(base, tmp_path / "adapters", is_trainable=True)
    expected = forward_logprobs(model.eval(), random_ids(0, 5), random_ids(1, 5))
    made = lora(folder, tmp_path / "run", model=model, peft_config=None, max_steps=1)
    made.train()
    (line,) = [line for line in made.state.log_history if "loss" in line]
    assert line["logprob_gap_max"] < 1e-4, "the sampler began with the adapters"
    assert abs(forward_logprobs(made.model.eval(), random_ids(0, 5), random_ids(1, 5)) - expected).max() > 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gradient_checkpointing", (False, True)),
        ("shared_prefix", (False, True)),
        # Less than a row: each is fed alone, its activations computed again.
        ("micro_batch_tokens", (4096, 3)),
    ],
)
def test_what_changes_speed_and_memory_changes_nothing_else(
    folder: Path, tmp_path: Path, name: str, values: tuple[Any, Any]
) -> None:
    ends: list[dict[str, Tensor]] = []
    for value in values:
        made = lora(folder, tmp_path / str(value), max_steps=1, beta=0.1, save_strategy="no", **{name: value})
        made.train()
        ends.append(dict(merged_weights(made.model)))
    for key, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][key])
    assert any(not torch.equal(tensor, fresh(folder)[key]) for key, tensor in ends[0].items())


def test_the_reference_is_the_base_and_costs_no_memory(folder: Path, tmp_path: Path) -> None:
    made = lora(folder, tmp_path, beta=0.5, max_steps=2, save_strategy="no")
    made.train()
    lines = [line for line in made.state.log_history if "loss" in line]
    assert lines[0]["kl"] == 0, "adapters begin at zero"
    assert lines[1]["kl"] > 0
    assert sum(p.numel() for p in made.model.parameters()) == sum(
        p.numel() for p in lora(folder, tmp_path / "plain").model.parameters()
    )


def test_supervised_training_takes_adapters_too(folder: Path, tmp_path: Path) -> None:
    rows = [row([5, 6, 7, 8, 9], [3, 4], rollout_id=f"r{i}") for i in range(4)]
    config = SftConfig(output_dir=str(tmp_path), max_steps=20, learning_rate=1e-1, use_cpu=True, save_strategy="no")
    result = train_sft(str(folder), rows, config, peft_config=LORA)
    assert result.losses[-1] < result.losses[0] - 0.3
    assert (tmp_path / "adapter_model.safetensors").exists()
    with pytest.raises(ConfigError, match="holds adapters, and no whole model"):
        train_sft(str(tmp_path), rows, config)
