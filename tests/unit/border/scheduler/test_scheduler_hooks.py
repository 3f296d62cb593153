"""What the scheduler does with a forward in flight when SGLang is about to act on a message."""

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
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from tests.unit.attach.engines import StubCollector
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import IdleExecutor, request

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

    def maybe_send_health_check_signal(self) -> None:
        pass


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def runtime(answers: Answers) -> PackedRuntime:
    """A runtime with a forward in flight."""
    executor = IdleExecutor()
    executor.asynchronous = True
    runtime = PackedRuntime(
        executor, answers, policy_of(CONFIG, ForwardBudget(10), launch_tokens=1)
    )
    runtime.submit("job", request([], [9]).pack(), None)
    runtime.step()
    assert runtime.in_flight == 1
    return runtime


@pytest.fixture
def scheduler(
    runtime: PackedRuntime, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> Scheduler:
    return Scheduler(runtime, answers, monkeypatch)


@pytest.mark.parametrize("message", COLLECTED, ids=lambda message: type(message).__name__)
def test_a_forward_in_flight_is_collected_before(scheduler: Scheduler, message: Any) -> None:
    scheduler._request_dispatcher(message)
    assert scheduler.answered_before == [1]


def test_weights_are_looked_at_behind_an_update(scheduler: Scheduler) -> None:
    scheduler._request_dispatcher(io_struct.UpdateWeightFromDiskReqInput(model_path=""))
    scheduler._request_dispatcher(io_struct.SlowDownReqInput(forward_sleep_time=None))
    assert scheduler.looked_at_weights_behind == [1]


def test_other_messages_do_not_wait_for_it(scheduler: Scheduler, runtime: PackedRuntime) -> None:
    scheduler._request_dispatcher(io_struct.SlowDownReqInput(forward_sleep_time=None))
    assert scheduler.answered_before == [0]
    assert runtime.in_flight == 1


def test_the_profiler_sees_every_count_of_forwards(
    scheduler: Scheduler, runtime: PackedRuntime
) -> None:
    runtime.submit("other", request([], [9]).pack(), None)
    batch, nothing = SimpleNamespace(reqs=[]), SimpleNamespace(batch_to_run=None)
    for _ in range(3):
        scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, None)
    assert scheduler.profiled == [(1, "EXTEND"), (2, "EXTEND")]


@pytest.mark.parametrize("aborted", [False, True])
def test_what_a_divided_request_held_is_offered_to_prompts_again(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    policy = policy_of(CONFIG, ForwardBudget(10), launch_tokens=1)
    runtime = PackedRuntime(IdleExecutor(), answers, policy, cache=MemoryCache())
    scheduler = Scheduler(runtime, answers, monkeypatch)

    def admitted() -> bool:
        """Whether SGLang looks at its waiting prompts again."""
        batch = SimpleNamespace(reqs=[], batch_is_full=True)
        nothing = SimpleNamespace(batch_to_run=None)
        scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, None)
        return not batch.batch_is_full

    runtime.submit("short", request([1, 2], [3]).pack(), None)
    runtime.submit("divided", request([*range(25)], [9]).pack(), None)
    assert [admitted() for _ in range(3)] == [False] * 3
    assert runtime.holders
    if aborted:
        runtime.abort("divided")
    assert [admitted() for _ in range(2)] == [True, False]
    assert not runtime.holders


@pytest.mark.parametrize("beside", ["nothing", "generation", "prefilled", "waiting"])
def test_only_beside_stock_requests_is_it_collected_for_want_of_slots(
    scheduler: Scheduler, runtime: PackedRuntime, answers: Answers, beside: str
) -> None:
    batch = SimpleNamespace(reqs=[0] * (beside == "generation"), batch_is_full=False)
    last_batch = batch if beside == "prefilled" else None
    scheduler.waiting_queue = [0] * (beside == "waiting")
    runtime.submit("next", request([], [9]).pack(), None)
    nothing = SimpleNamespace(batch_to_run=None)
    scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, last_batch)
    assert answers == (["job"] if beside == "nothing" else ["job", "next"])
