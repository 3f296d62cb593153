"""How `attention_kernel` is launched over the prefix alone."""

from collections.abc import Iterable

from prefill_kernels.shared_prefix_attention import configs as shared_prefix
from prefill_kernels.shared_prefix_attention.configs import ConfigTable, TileConfig, find_config
from prefill_kernels.variant import Variant

# Almost no block needs a mask, and all queries of a group meet the same keys: large tiles read
# them less often. One program fills a multiprocessor of Hopper with them.
_HOPPER: ConfigTable = {
    (64, 2): TileConfig(128, 128, 8, 3),
    (128, 2): TileConfig(128, 128, 8, 2),
    (256, 2): TileConfig(128, 32, 8, 2),
}


def tile_config(head_dim: int, itemsize: int, architecture: int) -> TileConfig | None:
    """The launch for the larger of the head sizes; None: too large for a dtype of `itemsize` bytes.

    Args:
        architecture: major compute capability; 9 is Hopper. On others, whose shared memory may be
            smaller, and for float32 the launch is that of `shared_prefix_attention`.
    """
    config = find_config(_HOPPER, head_dim, itemsize) if architecture == 9 else None
    return config or shared_prefix.tile_config(head_dim, itemsize)


def variants() -> Iterable[Variant]:
    """Every entry of the table."""
    parts = {"CACHED": True, "FRESH": True, "OWN": False}
    for (head_dim, _), config in _HOPPER.items():
        yield shared_prefix.variant(config, head_dim, "bf16", parts)
    for head_dim in (128, 256):
        gemma = shared_prefix.GEMMA_2
        yield shared_prefix.variant(_HOPPER[head_dim, 2], head_dim, "bf16", parts, **gemma)
