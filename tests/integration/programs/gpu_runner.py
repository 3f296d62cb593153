"""Serves packed requests with SGLang's own scheduler on a pretended H100.

``gpu_runner.py CASES OUT`` reads the flags of each case by its name, and writes ``OUT/<name>.json``
for each. Neither SGLang nor this package knows that there is no GPU, so both take the ways
that they take on one. Numbers are not computed. It runs as a script; each case is a child that is
forked after the imports.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
os.environ |= {"SGLANG_ENABLE_JIT_DEEPGEMM": "0", "TORCHDYNAMO_DISABLE": "1"}

from tests.gpu import device, libraries  # noqa: E402

GPU = device.pretend_gpu()
libraries.stand_in_of_libraries()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, publish  # noqa: E402
from sglang.srt.server_args import PortArgs, prepare_server_args  # noqa: E402

from sglang_prefill_ext.border.messages import PackedRowsReq  # noqa: E402
from sglang_prefill_ext.border.model.model_classes import encoder_traits  # noqa: E402
from sglang_prefill_ext.border.model.packed_backend import PackedForwardBatch  # noqa: E402
from sglang_prefill_ext.border.scheduler import scheduler_hooks  # noqa: E402
from sglang_prefill_ext.forward import pace  # noqa: E402
from sglang_prefill_ext.forward.graphs import replay  # noqa: E402
from sglang_prefill_ext.scheduling.planner import ForwardPlan  # noqa: E402
from sglang_prefill_ext.wire.arrays import int_array  # noqa: E402
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes  # noqa: E402
from sglang_prefill_ext.wire.parts import whole_rows  # noqa: E402
from sglang_prefill_ext.wire.read import Labels, Read, Vectors  # noqa: E402
from tests.integration.programs.children import import_models, run_in_child  # noqa: E402

libraries.stand_in_within_libraries()

FLAGS = (
    *("--device", "cuda", "--dtype", "bfloat16", "--load-format", "dummy", "--log-level", "error"),
    *("--max-total-tokens", "40960", "--max-running-requests", "4"),
    *("--cuda-graph-backend-prefill", "disabled", "--enable-prefill-only"),
    *("--prefill-only-known-answers", "off", "--prefill-only-max-forward-tokens", "12288"),
)
ROWS = 5
SIZES = {"short": (9, 2), "long": (9, 300), "cached": (2100, 2), "divided": (100, 3000)}
"""Tokens of the prefix, and of each row behind it: replayed as a graph, or not, ..."""
GRAPHS = (16, 64, 512, 2048)
"""Tokens of the graphs below the largest; a server's are captured in the same way, but there are 41
of them."""
STEPS = 12
READS: tuple[Read, ...] = (
    Labels(int_array([1, 2])),
    Labels(int_array([3, 1, 2]), normalised=False),
    Labels(int_array([1]), num_best=2),
)


def rows_of(size: str, read: Read, hidden: int | None) -> PackedRows:
    """A request; with `hidden`, one that replaces two tokens by embeddings of that width."""
    prefix, each = SIZES[size]
    tokens = np.arange(prefix + ROWS * each, dtype=np.int32) % 997
    rows = PackedRows(tokens, prefix, int_array([each] * ROWS), read)
    if hidden is None:
        return rows
    tokens[[1, -1]] = -1, -2
    return replace(rows, overrides=np.zeros((2, hidden), np.float32))


def requests(scheduler: Any, setup: Any) -> Iterator[tuple[str, PackedRows]]:
    """The requests of a case, each by its name."""
    runner = scheduler.tp_worker.model_runner
    reads = READS if runner.is_generation else (Vectors(setup.widths[0]),)
    causal = encoder_traits(runner.model_config) is None
    for number, read in enumerate(reads):
        for size in SIZES:
            for turn in ("first", "again"):
                rows = rows_of(size, read, None)
                yield f"{size}-{number}-{turn}", rows if causal else whole_rows(rows)
    if causal:
        hidden = runner.model_config.hidden_size
        yield "overridden", rows_of("short", reads[0], hidden)
    if runner.lora_manager is not None:
        for adapter in runner.lora_manager.loras:
            yield "adapted", replace(rows_of("short", reads[0], None), adapter=adapter)


def pretended_s(executor: Any, plan: ForwardPlan) -> float:
    """Run a forward, and return the time that it might take: an eager one waits for the host."""
    pace.run(executor, plan)
    replayed = plan.num_tokens <= max(executor.graph_use.sizes, default=0)
    return (2e-3 if replayed else 50e-3) + 1e-5 * plan.num_tokens


def few_sizes(max_tokens: int) -> list[int]:
    return [*(size for size in GRAPHS if size < max_tokens), max_tokens]


def batches() -> int:
    """Batches of packed forwards that exist, and with each its tensors."""
    return sum(type(each) is PackedForwardBatch for each in gc.get_objects())


def serve(flags: list[str]) -> dict[str, Any]:
    args = prepare_server_args([*FLAGS, *flags])
    args.resolve_once()
    args.check_server_args()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    with GPU:
        scheduler = Scheduler(args, PortArgs.init_new(args))
        work: Any = scheduler_hooks._process_work
        answers: dict[str, Any] = {}
        asked = 0
        sender = scheduler.ipc_channels.send_to_tokenizer
        sender.send_output = lambda message, *_: answers.update(message.results)
        GPU.waits.clear()
        libraries.LAUNCHED.clear()
        libraries.COMPILED.clear()
        gc.collect()
        gc.disable()
        of_graphs = batches()
        with torch.inference_mode():
            for name, rows in requests(scheduler, work.setup):
                request = PackedRowsReq(rid=name, row_bytes=to_bytes(rows), keep_prefix=True)
                scheduler.process_input_requests([request])
                asked += 1
                for _ in range(STEPS):
                    scheduler.get_next_batch_to_run(scheduler.running_batch, None)
        left = batches() - of_graphs
    return {
        "declined": work.runtime.declined_reason,
        "requests": asked,
        "answers": {name: f"{each.status}{each.message}" for name, each in answers.items()},
        "forwards": work.setup.graphs.forwards,
        "experts": work.setup.experts.reason,
        "waits": GPU.waits,
        "left": left,
        "launched": libraries.LAUNCHED,
        "compiled": libraries.COMPILED,
        "cached_tokens": work.runtime.stats.tokens_cached,
    }


def report(flags: list[str], out: Path) -> None:
    out.write_text(json.dumps(serve(flags)))


def main(cases: Path, out: Path) -> None:
    load_plugins()
    import_models()
    pace._fastest_s, replay.sizes_up_to = pretended_s, few_sizes
    named = json.loads(cases.read_text())
    prepare_server_args([*FLAGS, *next(iter(named.values()))])  # applies the patches, once for all
    for name, flags in named.items():
        run_in_child(name, report, flags, out / f"{name}.json")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
