"""Divide the memory of one device among several schedulers."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.errors import ConfigError

FLAG = "--prefill-only-schedulers"
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class FirstScheduler:
    """What the first scheduler finds after its model is loaded; sizes in bytes.

    Attributes:
        free_before: memory that was free before it loaded anything.
        room: memory that it could take for K/V if it were alone: free memory less the reserve.
        static_fraction: share of `free_before` for weights and K/V; the rest is the reserve for
            activations and CUDA graphs.
        fraction_given: the user chose `static_fraction`, so the reserve is that of all schedulers
            together. Otherwise SGLang estimated the reserve of one scheduler, and each needs as
            much.
        weights_shared: the weights are in memory once for all schedulers.
    """

    free_before: int
    room: int
    static_fraction: float
    fraction_given: bool = False
    weights_shared: bool = False

    @property
    def weights(self) -> int:
        """Memory that the weights take."""
        return max(0, int(self.free_before * self.static_fraction) - self.room)

    @property
    def reserve(self) -> int:
        return int(self.free_before * (1 - self.static_fraction))

    @property
    def further_cost(self) -> int:
        """Memory that each further scheduler takes beside its K/V."""
        copied = 0 if self.weights_shared else self.weights
        return copied + (0 if self.fraction_given else self.reserve)


def kv_share(first: FirstScheduler, schedulers: int) -> int:
    """Bytes that each of `schedulers` may take for K/V, the first included.

    Raises:
        ConfigError: the schedulers do not fit.
    """
    others = (schedulers - 1) * first.further_cost
    share = (first.room - others) // schedulers
    if share <= 0:
        raise ConfigError(
            f"{FLAG} {schedulers}: the first scheduler leaves {gib(first.room)} for K/V, and each "
            f"further one takes {gib(first.further_cost)} for weights and reserve. Start fewer "
            f"schedulers, raise --mem-fraction-static (now {first.static_fraction:g}), or share "
            "the weights with --weight-cache-mode daemon."
        )
    return share


def reserve_share(first: FirstScheduler, schedulers: int) -> int:
    """Bytes that each of `schedulers` may take beside weights and K/V."""
    return first.reserve // schedulers if first.fraction_given else first.reserve


def token_share(max_total_tokens: int, schedulers: int) -> int:
    """KV slots of each scheduler if the user gave `max_total_tokens` for the device.

    Raises:
        ConfigError: there are fewer slots than schedulers.
    """
    if max_total_tokens < schedulers:
        raise ConfigError(
            f"--max-total-tokens {max_total_tokens} leaves nothing for each of "
            f"{schedulers} schedulers ({FLAG}). Raise it, or leave it out."
        )
    return max_total_tokens // schedulers


def gib(size: int) -> str:
    """``"1.50 GiB"``."""
    return f"{size / GIB:.2f} GiB"
