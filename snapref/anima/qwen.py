"""The language model in front of the LLM adapter: transformers' Qwen3Model, at the config's size."""

from torch import nn

from snapref.config import TextConfig


def new_qwen(config: TextConfig) -> nn.Module:
    """A Qwen3Model with random weights (specification section 3); its state dict lacks the files' "model." prefix."""
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(
        Qwen3Config(
            vocab_size=config.qwen_vocab,
            hidden_size=config.qwen_width,
            num_hidden_layers=config.qwen_layers,
            num_attention_heads=config.qwen_heads,
            num_key_value_heads=config.qwen_kv_heads,
            head_dim=config.qwen_head_dim,
            intermediate_size=config.qwen_mlp,
            rms_norm_eps=1e-6,
            rope_theta=config.qwen_rope_theta,  # transformers 4 reads this one, 5 the next
            rope_parameters={"rope_type": "default", "rope_theta": config.qwen_rope_theta},
            use_cache=False,
        )
    )
