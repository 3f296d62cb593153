"""Launch parameters of the attention kernel by head size and dtype, and the variants to compile."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prefill_kernels.shared_prefix_attention.kernel import attention_kernel
from prefill_kernels.variant import TypeSpec, Variant


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Launch parameters.

    Attributes:
        query_rows: the most rows (query heads times tokens) of one program.
        block_keys: keys that a program processes in one step.
        num_warps, num_stages: as Triton's.
    """

    query_rows: int
    block_keys: int
    num_warps: int
    num_stages: int

    def block_tokens(self, group_size: int) -> int:
        """Most queries of a tile if `group_size` query heads share a key head; 0: none fits."""
        return self.query_rows // next_power_of_2(group_size)


ConfigTable = dict[tuple[int, int], TileConfig]
"""By (largest head size, bytes of an element)."""

# Two programs share a multiprocessor, so that one computes weights while the other multiplies.
# At most 99 KiB of shared memory, which every architecture since Ampere has.
_CONFIGS: ConfigTable = {
    (64, 2): TileConfig(64, 64, 4, 3),
    (128, 2): TileConfig(64, 64, 4, 2),
    (256, 2): TileConfig(64, 32, 8, 2),
    # One program fills a multiprocessor. 64 rows, of which a warpgroup multiplies, would spill.
    (512, 2): TileConfig(32, 32, 8, 2),
    (64, 4): TileConfig(32, 32, 4, 2),
    (128, 4): TileConfig(32, 32, 8, 2),
}

PROGRAMS_OF_A_PROCESSOR = 2
"""Programs that run on one multiprocessor at a time, if no head is larger than 256."""

WARPGROUP_ROWS = 64
"""Least rows of Hopper's warpgroup matrix instruction."""

HOPPER = 9
"""Major compute capability."""

# Few blocks of a prefix need a mask, and all queries of a group see the same keys, so large tiles
# read them less often. With these tiles, one program fills a multiprocessor of Hopper.
_PREFIX_ON_HOPPER: ConfigTable = {
    (64, 2): TileConfig(128, 128, 8, 3),
    (128, 2): TileConfig(128, 128, 8, 2),
    (256, 2): TileConfig(128, 32, 8, 2),
}

GEMMA_2: dict[str, Any] = {"soft_cap": 50.0, "window": 4095, "name": "soft cap, window"}
"""All options of a layer without sinks, with the values of Gemma 2."""

DEEPSEEK: dict[str, Any] = {"value_dim": 128, "group_size": 1, "name": "values of 128"}
"""Latent attention of DeepSeek V2 and V3, whose keys have 192 numbers."""

GPT_OSS: dict[str, Any] = {"window": 127, "sinks": True, "group_size": 8, "name": "window, sinks"}


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def tile_config(
    head_dim: int, itemsize: int, architecture: int = 0, *, prefix_alone: bool = False
) -> TileConfig | None:
    """Launch parameters for a head size; None if it is too large for a dtype of `itemsize` bytes.

    Args:
        head_dim: the larger of the two head sizes.
        architecture: major compute capability of the device. It matters for one case only: on
            Hopper, half precision with `prefix_alone` has larger tiles.
        prefix_alone: the queries see only their prefixes.
    """
    if prefix_alone and architecture == HOPPER:
        large = _find(_PREFIX_ON_HOPPER, head_dim, itemsize)
        if large is not None:
            return large
    return _find(_CONFIGS, head_dim, itemsize)


def _find(table: ConfigTable, head_dim: int, itemsize: int) -> TileConfig | None:
    """The entry of the smallest head size that holds `head_dim`; None: there is none."""
    sizes = [size for size, bytes_ in table if bytes_ == itemsize and size >= head_dim]
    return table[min(sizes), itemsize] if sizes else None


def constexprs(
    config: TileConfig, group_size: int, head_dim: int, value_dim: int
) -> dict[str, int]:
    """The kernel's compile-time sizes."""
    return {
        "GROUP_SIZE": group_size,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "GROUP_PAD": next_power_of_2(group_size),
        "BLOCK_TOKENS": config.block_tokens(group_size),
        "BLOCK_N": config.block_keys,
        "BLOCK_D": max(16, next_power_of_2(head_dim)),
        "BLOCK_DV": max(16, next_power_of_2(value_dim)),
    }


def variants() -> Iterable[Variant]:
    """All entries of the tables, and the options that change the code most."""
    parts = {"CACHED": True, "FRESH": True, "OWN": True}
    for (head_dim, itemsize), config in _CONFIGS.items():
        yield variant(config, head_dim, "bf16" if itemsize == 2 else "fp32", parts)
    config = _CONFIGS[128, 2]
    yield variant(config, 128, "fp16", {**parts, "CACHED": False}, name="no cache")
    yield variant(config, 80, "bf16", parts, group_size=7, name="7 heads")
    for head_dim in (128, 256):
        yield variant(_CONFIGS[head_dim, 2], head_dim, "bf16", parts, **GEMMA_2)
    yield variant(_CONFIGS[64, 2], 64, "bf16", parts, **GPT_OSS)
    yield variant(_CONFIGS[256, 2], 192, "bf16", parts, **DEEPSEEK)
    own = {"CACHED": False, "FRESH": False, "OWN": True}
    yield variant(config, 128, "bf16", own, name="own rows")
    prefix = {"CACHED": True, "FRESH": True, "OWN": False}
    for (head_dim, _), large in _PREFIX_ON_HOPPER.items():
        yield variant(large, head_dim, "bf16", prefix, name="prefix")
    gemma = {**GEMMA_2, "name": "prefix, soft cap, window"}
    for head_dim in (128, 256):
        yield variant(_PREFIX_ON_HOPPER[head_dim, 2], head_dim, "bf16", prefix, **gemma)


def variant(
    config: TileConfig,
    head_dim: int,
    dtype: str,
    parts: dict[str, bool],
    *,
    value_dim: int | None = None,
    group_size: int = 2,
    soft_cap: float = 0.0,
    window: int = -1,
    sinks: bool = False,
    name: str = "",
) -> Variant:
    """One variant, for tensors with the alignment that those of a server have."""
    pointer, strides = f"*{dtype}:16", ("i32:16", "i32:16")
    signature: dict[str, TypeSpec] = {
        **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), pointer),
        **dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), pointer),
        **{f"{tensor}_strides": strides for tensor in ("q", "k", "v", "k_cache", "v_cache")},
        "out_strides": ("i32:16", *strides),
        **dict.fromkeys(("query_token_ptr", "segment_start_ptr", "tiles_ptr"), "*i32:16"),
        "page_table_ptr": "*i32:16",
        "lse_ptr": "*fp32:16",
        "lse_strides": ("i32:16", "i32", "i32"),
        "scale": "fp32",
        "num_key_heads": "i32",
    }
    rule: dict[str, Any] = {"SOFT_CAP": soft_cap, "WINDOW": window}
    if sinks:
        signature["sinks_ptr"] = pointer
    else:
        rule["sinks_ptr"] = None
    sizes: dict[str, Any] = constexprs(config, group_size, head_dim, value_dim or head_dim)
    return Variant(
        name=", ".join(filter(None, (dtype, f"head size {head_dim}", name))),
        function=attention_kernel,
        signature=signature,
        constexprs={**sizes, **parts, **rule},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        needs_wgmma=dtype != "fp32" and config.query_rows >= WARPGROUP_ROWS,
    )
