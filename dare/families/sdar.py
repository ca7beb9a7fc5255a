"""SDAR (JetLM/SDAR-*-Chat, arXiv 2510.06303): a Qwen3 network with block-causal attention, no shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families import common
from dare_bench.dare.families.dims import Dims
from dare_bench.dare.families.facts import BLOCK_CAUSAL, BOOKKEEPING, Family, Network, only, require
from dare_bench.dare.families.keys import Tensors, decoder_tensors
from dare_bench.dare.families.registry import register

# The Qwen3 chat text without tools: no default system message; an empty thought when thinking is switched off.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{{ '\n\n' }}{% endif %}{% endif %}"
)
SWITCHES = {**common.PLAIN_DECODER, **common.NO_WINDOW, "attention_bias": (False,)}
# Training only, or chosen here: kernels, sharding, what the published training code prints.
IGNORED = frozenset(
    {"debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep", "use_mrope"}
)
_KNOWN = BOOKKEEPING | common.DECODER_FIELDS | common.WINDOW_FIELDS | IGNORED


def dims(config: Mapping[str, Any]) -> Dims:
    """Sizes of a config."""
    return common.decoder_dims(config, qk_norm=True)


def network(config: Mapping[str, Any]) -> Network:
    """Map the official fields to `Qwen3Config` arguments, refusing switches that change the computation."""
    require(config, "sdar", SWITCHES)
    only(config, "sdar", _KNOWN)
    arguments = common.decoder_arguments(dims(config), config, rope_theta=1e6, eps=1e-6, positions=32768)
    return Network("Qwen3ForCausalLM", "Qwen3Config", arguments)


def tensors(config: Mapping[str, Any]) -> Tensors:
    """Official names: those of Qwen3."""
    return decoder_tensors(dims(config))


register(
    Family(
        name="sdar",
        attention=BLOCK_CAUSAL,
        matches=lambda config: (
            config.get("model_type") == "sdar" or "SDARForCausalLM" in (config.get("architectures") or ())
        ),
        network=network,
        tensors=tensors,
        dims=dims,
        mask_token_id=151669,
        eos_token_id=151643,
        stop_tokens=("<|im_end|>", "<|endoftext|>"),
        reply_end="<|im_end|>",
        default_block_length=4,
        lora_targets=common.DENSE_TARGETS,
        chat_template=CHAT_TEMPLATE,
    )
)
