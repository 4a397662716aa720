"""Adapters of a model in training: which ones are taken, and what of them is sent, saved and compared."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from peft import IA3Config, LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM

from longrein.engines.base import AdapterSpec
from longrein.engines.local.adapted import AdaptedModule
from longrein.engines.local.adapters import AdaptableWeights
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.manifest import anonymous_file
from longrein.engines.local.model import load_model
from longrein.engines.local.weights import SharedWeights, make_manifest
from longrein.errors import ConfigError
from longrein.train.adapter_weights import adapter_settings, base_weights, merged_weights
from longrein.train.adapters import check_fit, is_adapted, lora_config, with_adapters
from longrein.train.choose import policy_objective
from longrein.train.objective import CrossEntropy, Objective
from longrein.train.packing import PlainPacking, TreePacking
from longrein.train.publication import AdaptersOnly, WholeWeights, publication_for
from longrein.train.reference import AdaptersOffPenalty, KlPenalty
from longrein.train.weights import named_weights
from longrein.types import Row
from tests import tiny
from tests.engines.local.reference import Driver, forward_logprobs, random_ids, request
from tests.train.exact import exact_model, sharing_rows, step_gradient
from tests.train.table import choices, objective


def fresh(family: str = "llama", **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny.config(family, **changes)).eval()


def trained(model: Any, seed: int = 0, **changes: Any) -> Any:
    """A model with adapters that are far from zero, as after many steps."""
    adapted = with_adapters(model, LoraConfig(**{"target_modules": "all-linear", **changes}), seed)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=parameter.dtype) * 0.1)
    return adapted


CHANGES = st.fixed_dictionaries(
    {
        "r": st.integers(1, 5),
        "lora_alpha": st.sampled_from([1, 8, 32]),
        "use_rslora": st.booleans(),
        "rank_pattern": st.sampled_from([{}, {r".*\.0\..*": 2}]),
        "alpha_pattern": st.sampled_from([{}, {r".*\.1\..*": 5}]),
    }
)


TARGETS: dict[str, Any] = {
    "llama": "all-linear",
    "gpt_neox": ["query_key_value", "embed_in", "lm_head"],
    # Its layers keep their weights as [in, out].
    "gpt2": "all-linear",
}


@settings(deadline=None, max_examples=12)
@given(family=st.sampled_from(sorted(TARGETS)), changes=CHANGES)
def test_merged_weights_are_those_that_peft_would_merge(family: str, changes: dict[str, Any]) -> None:
    """Under the names of a fresh model; nothing of the model in training is touched, and the rest is not copied."""
    plain = fresh(family, tie_word_embeddings=False)
    names = named_weights(plain).keys()
    model = trained(plain, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", **changes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged, base = merged_weights(model), base_weights(model)
    expected = named_weights(copy.deepcopy(model).merge_and_unload())
    assert names == merged.keys() == base.keys() == expected.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    copied = {name for name, tensor in merged.items() if tensor.data_ptr() != base[name].data_ptr()}
    assert copied == {f"{path}.weight" for path, _ in plain.named_modules() if hasattr(_, "lora_A")}
    assert 0 < len(copied) < len(merged)


class WholeOnly:
    """An engine that knows nothing of adapters."""

    def __init__(self, weights: SharedWeights) -> None:
        self.update = weights.update


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tiny.save_model(tmp_path_factory.mktemp(name), name) for name in ("llama", "qwen2", "gpt_neox")}


def served(folder: Path) -> tuple[Driver, AdaptableWeights]:
    model = load_model(LocalEngineConfig(model=str(folder), threads=1))
    driver = Driver(model)
    manifest, file_descriptor = make_manifest(model.module), anonymous_file()
    engine = AdaptedModule(model.module, manifest, file_descriptor)

    def publish(swap: Any) -> None:
        engine.take(swap)
        driver.scheduler.swap(swap.policy_version)

    return driver, AdaptableWeights(manifest, file_descriptor, publish)


# Models are loaded in each example: shrinking one would take minutes.
@settings(deadline=None, max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(name=st.sampled_from(["llama", "qwen2", "gpt_neox"]), changes=CHANGES, steps=st.integers(0, 2))
def test_engine_and_trainer_agree_by_either_way(
    folders: dict[str, Path], name: str, changes: dict[str, Any], steps: int
) -> None:
    """What is sampled with adapters sent alone, or merged, has the logprobs of the model in training."""
    model = trained(AutoModelForCausalLM.from_pretrained(folders[name]), **changes)
    alone, merged = served(folders[name]), served(folders[name])
    publications = [publication_for(alone[1], lambda: model), publication_for(WholeOnly(merged[1]), lambda: model)]
    assert [type(publication) for publication in publications] == [AdaptersOnly, WholeWeights]
    for publication in publications:
        publication.begin(0)
    for version in range(1, steps + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(-1.1)
        for publication in publications:
            publication.send(version)
    prompt = random_ids(0, 12)
    for driver, _ in (alone, merged):
        (completion,) = driver.run(request("c", prompt, max_tokens=8))
        assert (completion.min_policy_version, completion.max_policy_version) == (steps, steps)
        expected = forward_logprobs(model, prompt, completion.token_ids)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
        plain = forward_logprobs(AutoModelForCausalLM.from_pretrained(folders[name]), prompt, completion.token_ids)
        assert not np.allclose(completion.logprobs, plain, atol=1e-3)


def test_adapters_alone_are_sent_after_the_start() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.sent: list[tuple[str, int, set[str]]] = []

        def update(self, tensors: Any, policy_version: int) -> None:
            self.sent.append(("whole", policy_version, set(tensors)))

        def update_adapter(self, tensors: Any, spec: AdapterSpec, policy_version: int) -> None:
            assert {name.partition(".lora_")[0] for name in tensors} == spec.targets.keys()
            self.sent.append(("adapter", policy_version, set(tensors)))

    model, recorder = trained(fresh(), target_modules=["q_proj"]), Recorder()
    publication = publication_for(recorder, lambda: model)
    publication.begin(4)
    publication.send(5)
    names = {f"model.layers.{i}.self_attn.q_proj.lora_{x}.weight" for i in range(2) for x in "AB"}
    assert recorder.sent == [("whole", 4, set(named_weights(fresh()))), ("adapter", 4, names), ("adapter", 5, names)]
    assert isinstance(publication_for(recorder, fresh), WholeWeights)


OBJECTIVES: list[Objective] = [CrossEntropy(), objective(loss="gspo", epsilon=0.02, epsilon_high=0.02)]


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    return {name: trained(exact_model(name), seed=1) for name in ("llama", "qwen3", "gpt_neox")}


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["llama", "qwen3", "gpt_neox"]),
    rows=sharing_rows(),
    chosen=st.sampled_from([*OBJECTIVES, "kl"]),
    budget=st.integers(1, 120),
    checkpointing=st.booleans(),
)
def test_the_gradient_of_adapters_is_that_of_plain_rows(
    exact: dict[str, Any], name: str, rows: list[Row], chosen: Any, budget: int, checkpointing: bool
) -> None:
    model = exact[name]
    if chosen == "kl":
        chosen = policy_objective(choices(), AdaptersOffPenalty(model, weight=0.5, temperature=1.0))
    plain = step_gradient(model, rows, chosen, PlainPacking(10_000))
    if checkpointing:
        model.base_model.model.activation_checkpointing_enable()
    tree = step_gradient(model, rows, chosen, TreePacking(budget, hidden_size=8))
    if checkpointing:
        model.base_model.model.activation_checkpointing_disable()
    assert torch.linalg.norm(tree.values - plain.values) <= 1e-9 * torch.linalg.norm(plain.values)
    assert plain.values.numel() == 1 + sum(p.numel() for n, p in model.named_parameters() if ".lora_" in n)
    assert model.training


def test_the_gradient_is_that_of_the_merged_model_by_the_chain_rule(exact: dict[str, Any]) -> None:
    """W + s * B @ A: the gradient of B is s * G @ A^T, that of A is s * B^T @ G, with G that of the whole weight."""
    model: Any = exact["llama"]
    rows = _some_rows()
    step_gradient(model, rows, CrossEntropy(), PlainPacking(10_000))
    whole: Any = exact_model("llama")
    whole.load_state_dict(merged_weights(model), strict=False)
    step_gradient(whole, rows, CrossEntropy(), PlainPacking(10_000))
    found = 0
    for path, layer in model.base_model.model.named_modules():
        if hasattr(layer, "lora_A"):
            a, b, scaling = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.scaling["default"]
            gradient = whole.get_parameter(f"{path}.weight").grad
            torch.testing.assert_close(b.grad, scaling * gradient @ a.T, rtol=1e-7, atol=1e-12)
            torch.testing.assert_close(a.grad, scaling * b.T @ gradient, rtol=1e-7, atol=1e-12)
            found += 1
    assert found == 14


def _some_rows() -> list[Row]:
    from tests.train.test_tree_attention import forking_rows

    return forking_rows(np.random.default_rng(0), sizes=(30, 10, 10))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_kl_without_adapters_is_that_to_a_copy_of_the_base(checkpointing: bool) -> None:
    """Same loss, same gradient; what was frozen stays frozen, and no parameter is added."""
    base = exact_model("llama")
    copied = KlPenalty(copy.deepcopy(base), weight=0.5, temperature=0.8)
    model = trained(base)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            parameter.requires_grad_(False)
    off = AdaptersOffPenalty(model, weight=0.5, temperature=0.8)
    if checkpointing:
        model.base_model.model.activation_checkpointing_enable()
    expected, found = (
        step_gradient(model, _some_rows(), policy_objective(choices(), penalty), TreePacking(60, hidden_size=8))
        for penalty in (copied, off)
    )
    torch.testing.assert_close(found.values, expected.values, rtol=1e-10, atol=1e-12)
    assert found.totals.measures["kl"] == pytest.approx(expected.totals.measures["kl"])
    assert found.totals.measures["kl"] > 1e-4
    assert {name.partition(".lora_")[2][:1] for name, p in model.named_parameters() if p.requires_grad} == {"B"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_modules": ["nope"]}, "nope.*not found"),
        ({"target_modules": ["q_proj", "nope"]}, "target module 'nope' is nowhere in the model"),
        ({"r": 0}, "positive integer value but the value passed is 0"),
        ({"modules_to_save": ["lm_head"]}, "lm_head would train whole; leave out modules_to_save"),
        ({"trainable_token_indices": [1]}, "embed_tokens would train whole"),
        ({"use_dora": True}, r"q_proj uses DoraLinearVariant.*use_dora=False"),
        ({"lora_bias": True}, "lora_bias=False"),
        ({"bias": "all"}, "bias='all' trains the model's own"),
        ({"init_lora_weights": "pissa"}, "'pissa' changes the model's own weights"),
        ({"layer_replication": [(0, 1), (0, 1)]}, "layer_replication"),
        ({"target_modules": ["lm_head"]}, r"lm_head is tied to another; leave lm_head out"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens is tied to another"),
    ],
)
def test_adapters_that_cannot_be_published_are_refused(changes: dict[str, Any], says: str, folders: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        with_adapters(fresh(), LoraConfig(**changes), seed=0)
    with pytest.raises(ConfigError, match=says):
        check_fit(str(folders["llama"]), LoraConfig(**changes))


def _frozen(model: Any) -> None:
    model.requires_grad_(False)


def _whole(model: Any) -> None:
    model.requires_grad_(True)


def _merged(model: Any) -> None:
    model.merge_adapter()


def _second(model: Any) -> None:
    model.add_adapter("second", LoraConfig())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_frozen, "nothing of them trains; load them with is_trainable=True"),
        (_whole, r"embed_tokens\.weight would train too \(of 20 such\)"),
        (_merged, "has its adapter merged"),
        (_second, r"there are 2 \(default, second\); keep one"),
    ],
)
def test_so_are_those_of_a_model_that_has_them_already(spoil: Any, says: str) -> None:
    model = trained(fresh(), target_modules=["q_proj"])
    assert with_adapters(model, None, seed=0) is model
    spoil(model)
    with pytest.raises(ConfigError, match=says):
        with_adapters(model, None, seed=0)


def test_other_kinds_and_other_things_are_refused() -> None:
    with pytest.raises(ConfigError, match="of kind IA3; use a LoraConfig"):
        with_adapters(fresh(), IA3Config(target_modules=["q_proj"]), seed=0)
    with pytest.raises(ConfigError, match=r"peft_config is a dict; give a peft\.LoraConfig"):
        with_adapters(fresh(), {"r": 8}, seed=0)
    with pytest.raises(ConfigError, match="a PeftModel already"):
        with_adapters(trained(fresh()), LoraConfig(), seed=0)
    inside = fresh()
    # As transformers marks a model after its add_adapter.
    inside._hf_peft_config_loaded = True
    with pytest.raises(ConfigError, match="add_adapter put adapters into the model"):
        with_adapters(inside, None, seed=0)


def test_without_peft_one_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install 'longrein\[lora\]'"):
        with_adapters(fresh(), SimpleNamespace(), seed=0)
    with pytest.raises(ConfigError, match=r"pip install 'longrein\[lora\]'"):
        lora_config(rank=8, alpha=16, dropout=0.0, target_modules=())
    model = fresh()
    assert with_adapters(model, None, seed=0) is model
    assert not is_adapted(model)


def test_new_adapters_start_from_the_seed_and_leave_the_random_state_alone() -> None:
    def factors(seed: int) -> list[Tensor]:
        model = with_adapters(fresh(), LoraConfig(), seed)
        return [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]

    torch.manual_seed(5)
    expected = torch.rand(1)
    for first, second in zip(factors(1), factors(1), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(factors(1)[0], factors(2)[0])
    model = fresh()
    torch.manual_seed(5)
    with_adapters(model, LoraConfig(), 3)
    assert torch.equal(torch.rand(1), expected)


def test_a_base_is_known_by_its_weights_and_not_by_its_adapters() -> None:
    first, second = trained(fresh(), seed=0), trained(fresh(), seed=1)
    assert adapter_settings(first) == adapter_settings(second)
    scaled = trained(fresh(), lora_alpha=99)
    assert adapter_settings(scaled)["lora_scalings"] == [99 / 8] != adapter_settings(first)["lora_scalings"]
    other = fresh()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.add_(1e-3)
    assert adapter_settings(trained(other))["base_weights"] != adapter_settings(first)["base_weights"]
