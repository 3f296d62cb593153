"""Several schedulers on one device, as SGLang's data-parallel replicas: start, memory, cores."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.model_override_base import resolving_view
from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board
from sglang_prefill_ext.shared_device.memory_shares import (
    FLAG,
    GIB,
    FirstScheduler,
    gib,
    kv_share,
    reserve_share,
    token_share,
)
from sglang_prefill_ext.shared_device.placement import (
    CPU,
    Placement,
    core_groups,
    doubts,
    usable_cores,
)

logger = logging.getLogger(__name__)

_TURN_POLL_S = 0.05


def ask_for_replicas(server_args: Any, config: PrefillOnlyConfig) -> None:
    """Set the flags by which SGLang starts the schedulers, before it resolves its arguments.

    Raises:
        ConfigError: other flags ask for several devices, or leave too little for each scheduler.
    """
    if config.schedulers == 1:
        return
    sizes = {
        "--dp-size": server_args.dp_size,
        "--tp-size": server_args.tp_size,
        "--pp-size": server_args.pp_size,
        "--attn-dp-size": server_args.attn_dp_size,
        "--nnodes": server_args.nnodes,
    }
    for flag, size in sizes.items():
        if size > 1:
            raise ConfigError(
                f"{FLAG} {config.schedulers} cannot be combined with {flag} {size}: the schedulers "
                "share one device, each with the whole model. Leave out either."
            )
    core_groups(usable_cores(), config.schedulers, config.scheduler_cores)
    server_args.dp_size = config.schedulers
    if server_args.max_total_tokens is not None:
        share = token_share(server_args.max_total_tokens, config.schedulers)
        server_args.max_total_tokens = share
    if server_args.load_balance_method == "auto":
        server_args.load_balance_method = "total_tokens"


def start_in_turn(
    original: Callable[..., None],
    controller: Any,
    server_args: Any,
    port_args: Any,
    base_gpu_id: int,
    dp_rank: int | None,
    worker_ports: list[int] | None = None,
) -> None:
    """AROUND `DataParallelController.launch_tensor_parallel_group`: start schedulers one by one.

    All run on one device. Each measures free memory while it starts, so no two may start at the
    same time. SGLang starts every replica from a thread of its own; the replica inherits the cores
    of that thread.
    """
    config = config_of(server_args)
    if config is None or config.schedulers == 1 or dp_rank is None:
        original(controller, server_args, port_args, base_gpu_id, dp_rank, worker_ports)
        return
    while len(controller._scheduler_init_infos) < dp_rank:
        time.sleep(_TURN_POLL_S)
    device = resolving_view(server_args).device
    if dp_rank == 0:
        _prepare(config, device)
    if config.scheduler_cores:
        groups = core_groups(usable_cores(), config.schedulers, config.scheduler_cores)
        os.sched_setaffinity(0, groups[dp_rank])
    logger.info("Prefill-only serving: scheduler %d of %d starts", dp_rank + 1, config.schedulers)
    # On a CPU, SGLang takes the number for that of the group of cores to compute on.
    device_id = base_gpu_id if device == CPU else 0
    original(controller, server_args, port_args, device_id, dp_rank, worker_ports)


def share_room(room: int, configurator: Any, pre_model_load_memory: float) -> int | None:
    """AFTER `KVCacheConfigurator._profile_available_bytes`: limit K/V to one scheduler's share.

    The first scheduler computes the share of each and writes it to the board; the others read it.

    Args:
        room: bytes that SGLang would take for K/V.
        pre_model_load_memory: free memory before the model was loaded, in GiB.

    Raises:
        ConfigError: the schedulers do not fit.
    """
    server_args = configurator.server_args
    config = config_of(server_args)
    if config is None or config.schedulers == 1:
        return None
    board, rank = Board.found(config.schedulers), get_parallel().dp_rank or 0
    if rank == 0:
        resolved = resolving_view(server_args)
        first = FirstScheduler(
            free_before=int(pre_model_load_memory * GIB),
            room=room,
            static_fraction=resolved.mem_fraction_static,
            fraction_given=server_args.mem_fraction_static is not None,
            weights_shared=resolved.weight_cache_mode != "off",
        )
        board.set_shares(
            kv_share(first, config.schedulers), reserve_share(first, config.schedulers)
        )
        logger.info(
            "Prefill-only serving: each of %d schedulers takes %s for K/V; each further one adds "
            "%s of weights and reserve",
            *(config.schedulers, gib(board.kv_bytes), gib(first.further_cost)),
        )
    elif room < board.kv_bytes:
        logger.warning(
            "Prefill-only serving: scheduler %d finds only %s for K/V of its share of %s",
            *(rank + 1, gib(room), gib(board.kv_bytes)),
        )
    return min(room, board.kv_bytes)


def _prepare(config: PrefillOnlyConfig, device: str) -> None:
    """Prepare once, before the first scheduler starts: board, cores on a CPU, warnings."""
    os.environ[BOARD_VARIABLE] = Board.create(config.schedulers).path
    if device == CPU:
        groups = core_groups(usable_cores(), config.schedulers, config.scheduler_cores)
        bound = "|".join(",".join(map(str, group)) for group in groups)
        os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", bound)
    placement = Placement.of_this_process()
    logger.info("Prefill-only serving: schedulers run with %s", placement)
    for doubt in doubts(placement, device, config.schedulers):
        logger.warning("Prefill-only serving: %s", doubt)
