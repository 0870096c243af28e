"""Every size in the house, as frozen dataclasses. Nothing else in the package states a size."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DiTConfig:
    """The diffusion transformer (Cosmos-Predict2 layout, specification section 2)."""

    width: int  # features per token, D
    heads: int
    blocks: int
    context_width: int  # features per context row
    adaln_rank: int  # inner width of every AdaLN modulation pair
    latent_channels: int = 16
    patch: int = 2  # latent pixels per token side
    mlp_ratio: int = 4
    rope_theta: float = 10_000.0
    rope_scale: tuple[float, float, float] = (1.0, 4.0, 4.0)  # NTK ratio r for (t, h, w)

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.head_dim % 2:
            raise ValueError(f"head width {self.head_dim} is odd; RoPE turns features in pairs")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class TextConfig:
    """Prompt to context: a Qwen3 language model, T5-style ids, and the LLM adapter (section 3)."""

    context_rows: int  # zero rows are added up to this number; they take part in attention
    adapter_blocks: int
    adapter_heads: int
    t5_vocab: int  # rows of the adapter's embedding
    qwen_vocab: int
    qwen_width: int
    qwen_layers: int
    qwen_heads: int
    qwen_kv_heads: int
    qwen_head_dim: int
    qwen_mlp: int
    qwen_rope_theta: float = 1_000_000.0
    qwen_pad_id: int = 151_643  # <|endoftext|>: the whole of an empty prompt
    t5_pad_id: int = 0
    t5_eos_id: int = 1


@dataclass(frozen=True)
class CodecConfig:
    """Pixels to latents. `kind` names the class: the published VAE, or nano's own small codec."""

    kind: str  # "qwen_image" or "nano"
    factor: int  # pixels per latent pixel, each side
    latent_channels: int = 16


@dataclass(frozen=True)
class ModelConfig:
    name: str
    dit: DiTConfig
    text: TextConfig
    codec: CodecConfig
    default_size: tuple[int, int]  # (height, width) in pixels
    default_steps: int
    default_guidance: float  # classifier-free guidance scale
    shift: float = 3.0  # of the sigma schedule
    default_ref_megapixels: float = 1.0  # a larger reference is shrunk to this area, in million pixels

    @property
    def size_step(self) -> int:
        """Picture sides must be multiples of this many pixels."""
        return self.codec.factor * self.dit.patch


BASE = ModelConfig(
    name="anima",
    dit=DiTConfig(width=2048, heads=16, blocks=28, context_width=1024, adaln_rank=256),
    text=TextConfig(
        context_rows=512, adapter_blocks=6, adapter_heads=16, t5_vocab=32_128,
        qwen_vocab=151_936, qwen_width=1024, qwen_layers=28, qwen_heads=16, qwen_kv_heads=8,
        qwen_head_dim=128, qwen_mlp=3072,
    ),
    codec=CodecConfig(kind="qwen_image", factor=8),
    default_size=(1216, 832), default_steps=28, default_guidance=4.5,
)

NANO = ModelConfig(
    name="nano",
    dit=DiTConfig(width=256, heads=4, blocks=6, context_width=64, adaln_rank=32),
    text=TextConfig(
        context_rows=96, adapter_blocks=2, adapter_heads=4, t5_vocab=512,
        qwen_vocab=512, qwen_width=64, qwen_layers=2, qwen_heads=4, qwen_kv_heads=2,
        qwen_head_dim=16, qwen_mlp=192, qwen_pad_id=0,
    ),
    codec=CodecConfig(kind="nano", factor=8),
    default_size=(128, 96), default_steps=28, default_guidance=3.0, default_ref_megapixels=0.0125,
)


# What each branch of the adapter touches, as module names inside a block.
REFERENCE_TARGETS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.output_proj",
    "cross_attn.q_proj", "cross_attn.output_proj", "mlp.layer1", "mlp.layer2",
)
TARGET_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.output_proj")


@dataclass(frozen=True)
class AdapterConfig:
    """The two LoRA branches, where a reference sits, and what its modes are called."""

    name: str
    reference_rank: int
    target_rank: int
    reference_alpha: float  # scale = alpha / rank
    target_alpha: float
    place: tuple[float, float, float]  # (t, h, w) of the reference grid's first token
    reference_targets: tuple[str, ...] = REFERENCE_TARGETS
    target_targets: tuple[str, ...] = TARGET_TARGETS
    captions: dict[str, str] = field(
        default_factory=lambda: {
            "cs": "character and style reference",
            "char": "character reference",
        }
    )
    default_mode: str = "cs"


V1A = AdapterConfig("v1a", 128, 64, 128.0, 64.0, place=(0.0, 512.0, 0.0))
V1B = AdapterConfig("v1b", 256, 128, 256.0, 128.0, place=(0.0, 512.0, 0.0))
V2A = AdapterConfig("v2a", 128, 64, 128.0, 64.0, place=(0.0, 512.0, 0.0))
NANO_V1A = AdapterConfig("nano-v1a", 32, 16, 32.0, 16.0, place=(0.0, 32.0, 0.0))
NANO_V1B = AdapterConfig("nano-v1b", 64, 32, 64.0, 32.0, place=(0.0, 32.0, 0.0))
NANO_V2A = AdapterConfig("nano-v2a", 32, 16, 32.0, 16.0, place=(0.0, 32.0, 0.0))
