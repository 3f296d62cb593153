"""A stand-in for SGLang's scheduler with a packed path."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers import io_struct
from sglang.utils import TypeBasedDispatcher

from sglang_prefill_ext.border.scheduler import scheduler_hooks
from sglang_prefill_ext.border.scheduler.packed_work import RuntimeSetup
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.forward.expert_blocks import ExpertUse
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from tests.unit.attach.engines import StubCollector

CONFIG = PrefillOnlyConfig()
PAUSE = io_struct.PauseGenerationReqInput(mode="retract")
COLLECTED = [
    *(PAUSE, io_struct.BeginWeightUpdateReqInput(), io_struct.EndWeightUpdateReqInput()),
    io_struct.UpdateWeightFromDiskReqInput(model_path=""),
    io_struct.UpdateWeightsFromDistributedReqInput(names=[], dtypes=[], shapes=[]),
    io_struct.UpdateWeightsFromIPCReqInput(zmq_handles={}),
    io_struct.UpdateWeightsFromTensorReqInput(serialized_named_tensors=[]),
    io_struct.ReleaseMemoryOccupationReqInput(),
]


class Answers(list[str]):
    """Ids of the jobs that were answered, and with what."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Ended] = []

    def __call__(self, ended: Sequence[Ended]) -> None:
        self.extend(job.rid for job, _ in ended)
        self.ended += ended


class Scheduler:
    """Stands for SGLang's scheduler; notes how many jobs were answered before it acts."""

    def __init__(
        self, runtime: PackedRuntime, answers: Answers, collect: pytest.MonkeyPatch
    ) -> None:
        self.answered_before: list[int] = []

        def act(_message: Any) -> None:
            self.answered_before.append(len(answers))

        kinds = {type(message): act for message in COLLECTED} | {io_struct.SlowDownReqInput: act}
        self._request_dispatcher = TypeBasedDispatcher(list(kinds.items()))
        self.server_args = self.tp_cpu_group = None
        self.forward_ct = 0
        self.profiled: list[tuple[int, str]] = []
        self.profiler_manager = SimpleNamespace(_profile_batch_predicate=self._note)
        self.published_behind: list[int] = []
        self.kv_events_publisher = SimpleNamespace(
            enable_kv_cache_events=True, publish_kv_events=self._publish
        )
        self.waiting_queue: list[object] = []
        self.metrics_collector_context = SimpleNamespace(current_scheduler_metrics_enabled=False)
        model = SimpleNamespace(forward=lambda input_embeds: None, get_input_embeddings=None)
        runner = SimpleNamespace(decode_cuda_graph_captured=False, model=model)
        self.tp_worker = SimpleNamespace(model_runner=runner)
        collect.setattr(scheduler_hooks, "_process_work", None)
        collect.setattr(scheduler_hooks, "config_of", lambda _args: CONFIG)
        collect.setattr(scheduler_hooks, "collector_of", lambda _role: StubCollector())
        self.looked_at_weights_behind: list[int] = []

        def look() -> None:
            self.looked_at_weights_behind.append(len(self.answered_before))

        setup = RuntimeSetup(
            *(runtime, GraphUse(), ExpertUse(), (0, 0)),
            after_update=look,
            is_short=lambda: True,
        )
        collect.setattr(scheduler_hooks, "set_up_runtime", lambda *_args: setup)
        scheduler_hooks.attach_runtime(None, self)

    def _note(self, batch: Any) -> None:
        self.profiled.append((self.forward_ct, batch.forward_mode.name))

    def _publish(self) -> None:
        self.published_behind.append(self.forward_ct)
