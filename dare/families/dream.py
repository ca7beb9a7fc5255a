"""Dream-7B (Dream-org, arXiv 2508.15487) and DiffuCoder-7B: a Qwen2 network with full attention; logit i scores i + 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.facts import BOOKKEEPING, FULL, Family, Network, only, require
from dare_bench.dare.families.keys import Tensors, decoder_tensors
from dare_bench.dare.families.registry import register

# ChatML of Qwen2.5 with Dream's default system message.
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)
_SWITCHES = {**common.PLAIN_DECODER, **common.NO_WINDOW, "use_mrope": (False, None), "attention_bias": (True, None)}
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | common.WINDOW_FIELDS | {*_SWITCHES}


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    return common.decoder_dims(config, qkv_bias=True)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Qwen2Config` arguments, refusing switches that change the computation."""
    require(config, "dream", _SWITCHES)
    only(config, "dream", _KNOWN)
    arguments = common.decoder_arguments(dims(config), config, rope_theta=1e6, eps=1e-6, positions=131072)
    arguments.pop("attention_bias")  # Qwen2 always has biases on q, k, v and none on o
    return Network("Qwen2ForCausalLM", "Qwen2Config", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: those of Qwen2."""
    return decoder_tensors(dims(config))


register(
    Family(
        name="dream",
        attention=FULL,
        matches=lambda config: (
            config.get("model_type") == "Dream" or "DreamModel" in (config.get("architectures") or ())
        ),
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=151666,
        eos_token_id=151643,
        stop_tokens=("<|im_end|>", "<|endoftext|>", "<|dlm_pad|>"),
        reply_end="<|im_end|>",
        reply_fill="<|dlm_pad|>",  # of DiffuCoder's instruct models
        default_block_length=32,
        lora_targets=common.DENSE_TARGETS,
        chat_template=CHAT_TEMPLATE,
        shift=1,
    )
)
