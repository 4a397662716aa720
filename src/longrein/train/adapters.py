"""LoRA adapters on a model, made by PEFT: put there, and checked to be such as can be trained and published."""

# peft, torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from longrein.errors import ConfigError

ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer but the output head."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
"""Values of ``init_lora_weights`` that leave the model's own weights alone."""


def lora_config(*, rank: int, alpha: float, dropout: float, target_modules: tuple[str, ...]) -> Any:
    """A ``peft.LoraConfig`` for a causal LM.

    Args:
        rank, alpha, dropout: of every adapted module; its update is ``alpha / rank * B @ A``.
        target_modules: ends of module names; none for every linear layer but the output head.

    Raises:
        ConfigError: PEFT is not installed.
    """
    chosen = list(target_modules) or ALL_LINEAR
    return _peft().LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=chosen, task_type="CAUSAL_LM"
    )


def is_adapted(model: nn.Module) -> bool:
    """Whether a model, off its wrappers, is a ``peft.PeftModel``; PEFT is not imported to find out."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def refuse_adapter_folder(model: str) -> None:
    """Raise :class:`~longrein.errors.ConfigError` for a folder of adapters, which the library loads its own way."""
    if (Path(model) / "adapter_config.json").is_file():
        raise ConfigError(
            f"{model} holds adapters, and no whole model; load them with PeftModel.from_pretrained(base_model, folder, "
            "is_trainable=True) and pass that, or merge them first"
        )


def with_adapters(model: nn.Module, peft_config: Any, seed: int) -> nn.Module:
    """The model that trains: as it is, or wrapped by PEFT with new adapters (the model is then changed in place).

    Args:
        model: a model of the library, or a ``peft.PeftModel`` of one.
        peft_config: ``None`` for a model as it is.
        seed: new adapters start the same with the same seed.

    Raises:
        ConfigError: PEFT is not installed, or adapters that cannot be trained and published.
    """
    if peft_config is not None:
        model = _adapted(model, peft_config, seed)
    if is_adapted(model):
        _check(_problems(model))
    elif getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError(
            "add_adapter put adapters into the model; pass peft_config in its place, or a PeftModel of the base model"
        )
    return model


def check_fit(folder: str, peft_config: Any) -> None:
    """Put adapters on a model of a folder's configuration that has no numbers: takes neither time nor memory.

    Raises:
        ConfigError: as :func:`with_adapters`.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not the folder of a causal LM: {error}") from error
    with_adapters(cast(nn.Module, model), peft_config, seed=0)


def _adapted(model: nn.Module, peft_config: Any, seed: int) -> nn.Module:
    peft = _peft()
    if is_adapted(model):
        raise ConfigError("the model is a PeftModel already; leave peft_config out, or pass its base model")
    if not isinstance(peft_config, peft.PeftConfig):
        raise ConfigError(f"peft_config is a {type(peft_config).__name__}; give a peft.LoraConfig")
    _check(_config_problems(peft_config))
    wanted = getattr(peft_config, "target_modules", None)
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        # PEFT 0.21 reads an attribute that transformers has renamed.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        # What it warns of is an error of ours, below.
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*lora_bias", category=UserWarning)
        try:
            # A copy, since PEFT writes into it; the caller's can make other adapters.
            adapted = cast(nn.Module, peft.get_peft_model(cast(Any, model), copy.deepcopy(peft_config)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"peft_config does not fit {type(model).__name__}: {error}") from error
    _check(_idle_targets(adapted, wanted))
    return adapted


def _check(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ConfigError(f"adapters that cannot be trained and published: {problem}")


def _idle_targets(model: nn.Module, wanted: Any) -> Iterator[str]:
    """Of a list of targets, PEFT is content if one is found; a misspelt one would silently not train."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = [f".{path}" for path, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    for target in [] if wanted is None or isinstance(wanted, str) else sorted(wanted):
        if not any(path.endswith(f".{target}") for path in adapted):
            yield f"target module {target!r} is nowhere in the model; correct target_modules"


def _problems(model: nn.Module) -> Iterator[str]:
    configs: dict[str, Any] = cast(Any, model).peft_config
    if len(configs) != 1:
        yield f"there are {len(configs)} ({', '.join(configs)}); keep one"
    for config in configs.values():
        yield from _config_problems(config)
    base = cast(nn.Module, cast(Any, model).get_base_model())
    for path, module in base.named_modules():
        yield from _module_problems(path, module)
    yield from _tied(base)
    yield from _trained(model)


def _config_problems(config: Any) -> Iterator[str]:
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        yield f"they are of kind {kind}; use a LoraConfig"
    if config.init_lora_weights not in PLAIN_STARTS:
        yield (
            f"init_lora_weights={config.init_lora_weights!r} changes the model's own weights, or needs data; use one "
            f"of {PLAIN_STARTS}"
        )
    if config.bias != "none":
        yield f"bias={config.bias!r} trains the model's own biases; use 'none'"
    if config.layer_replication:
        yield "layer_replication makes another model of it; leave it out"


def _module_problems(path: str, module: nn.Module) -> Iterator[str]:
    from peft.tuners.lora import Embedding, Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if isinstance(module, AuxiliaryTrainingWrapper):
        yield f"{path} would train whole; leave out modules_to_save and trainable_token_indices, or train without LoRA"
    if not isinstance(module, BaseTunerLayer):
        return
    layer = cast(Any, module)
    if type(layer) not in {Linear, Embedding}:
        yield f"{path} is adapted as a {type(layer).__name__}; target linear layers and embeddings, unquantised"
        return
    variants = [type(variant).__name__ for variant in layer.lora_variant.values()]
    if variants:
        yield f"{path} uses {', '.join(variants)}, which is no W + scaling * B @ A; use plain LoRA (use_dora=False)"
    if any(layer.lora_bias.values()):
        yield f"{path} has a bias of its own; use lora_bias=False"
    if layer.merged:
        yield f"{path} has its adapter merged; unmerge_adapter() first"


def _tied(base: nn.Module) -> Iterator[str]:
    """Adapted weights that another module uses too: the bare model has no place for two versions of them."""
    from peft.tuners.lora import LoraLayer

    uses: dict[int, int] = {}
    for parameter in (parameter for _, parameter in base.named_parameters(remove_duplicate=False)):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for path, module in base.named_modules():
        if isinstance(module, LoraLayer) and uses[id(cast(Any, module).get_base_layer().weight)] > 1:
            yield f"the weight of {path} is tied to another; leave {path} out of target_modules"


def _trained(model: nn.Module) -> Iterator[str]:
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    others = [name for name in trained if ".lora_" not in name]
    if not trained:
        yield "nothing of them trains; load them with is_trainable=True"
    if others:
        yield f"{others[0]} would train too (of {len(others)} such); freeze the model's own weights"


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"adapters need the package peft ({error}); pip install 'longrein[lora]'") from error
    return peft
