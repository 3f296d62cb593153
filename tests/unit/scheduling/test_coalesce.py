"""Which jobs share a forward, by one test per rule."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, ForwardSize, GraphCost
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy, choose_jobs
from sglang_prefill_ext.scheduling.queue import JobQueue
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from tests.unit.scheduling.jobs import job_of, request
from tests.unit.wire.strategies import PlainRequest, plain_requests

BUDGET = ForwardBudget(12, max_bytes=60, bytes_per_token=3, bytes_per_row=5)
SMALL = plain_requests(max_suffix=2, max_rows=2)
"""Requests of which several fit `BUDGET`."""
ALWAYS = 10**9
"""A launch cost so high that every job that fits joins the forward."""


def _queue(*jobs: Job) -> JobQueue:
    queue = JobQueue(lambda job: ())
    for job in jobs:
        queue.push(job)
    return queue


def _policy(
    budget: ForwardBudget, launch: int, graphs: GraphCost = NO_GRAPHS, adapters: int = 1
) -> SchedulingPolicy:
    return SchedulingPolicy(
        *(budget, Order.FCFS, 1, launch, QueueLoad()),
        graphs=graphs,
        adapters_fit=lambda names: len(names) <= adapters,
    )


def _chosen(
    *jobs: Job,
    budget: int = 100,
    launch: int = ALWAYS,
    join: int = 100,
    graphs: GraphCost = NO_GRAPHS,
    adapters: int = 1,
) -> list[int]:
    """Indices of the chosen jobs among the given ones."""
    policy = _policy(ForwardBudget(budget), launch, graphs, adapters)
    chosen = choose_jobs(_queue(*jobs), policy, join)
    return [jobs.index(job) for job in chosen]


def _jobs(*lengths: int) -> list[Job]:
    """Jobs of one row each, without a prefix in common."""
    return [job_of(request([], range(length))) for length in lengths]


@given(
    st.lists(SMALL | plain_requests(max_suffix=5, max_rows=4), min_size=2, max_size=8),
    st.lists(st.sampled_from([[], [1, 2, 3]]), min_size=8, max_size=8),
    st.lists(st.sampled_from(["", "", "a", "b"]), min_size=8, max_size=8),
    st.sampled_from([ALWAYS, ALWAYS, 30, 2, 0]),
    st.sampled_from([14, 12, 9, 6, 3, 0]),
    st.integers(1, 3),
)
def test_the_choice_is_the_front_of_the_queue_whose_adapters_fit(
    requests: list[PlainRequest],
    prefixes: list[list[int]],
    adapters: list[str],
    launch: int,
    join: int,
    most_adapters: int,
) -> None:
    jobs = [
        job_of(replace(one, prefix=prefix, adapter=adapter), budget=9)
        for one, prefix, adapter in zip(requests, prefixes, adapters, strict=False)
    ]
    queue = _queue(*jobs)
    chosen = choose_jobs(queue, _policy(BUDGET, launch, adapters=most_adapters), join)
    present = [*dict.fromkeys(job.piece.adapter for job in jobs)][:most_adapters]
    fitting = [job for job in jobs if job.piece.adapter in present]
    assert chosen == fitting[: len(chosen)]
    assert chosen
    if len(chosen) > 1:
        plan = plan_forward([job.piece for job in chosen])
        assert plan.num_tokens <= join
        assert {*plan.adapters} == {job.piece.adapter for job in chosen}
        assert BUDGET.fits(plan.num_tokens, plan.num_rows)
    if launch == 0:
        assert len(chosen) <= 1
    assert list(queue) == jobs, "choosing changes nothing"


def test_nothing_is_chosen_where_nothing_waits() -> None:
    assert _chosen() == []


def test_jobs_join_up_to_the_first_that_does_not_fit() -> None:
    assert _chosen(*_jobs(4, 4, 4, 1), budget=11) == [0, 1]
    assert _chosen(*_jobs(4, 4, 3, 1), budget=11) == [0, 1, 2]
    assert _chosen(*_jobs(4, 4, 4, 1), join=8) == [0, 1]
    assert _chosen(*_jobs(9, 1), join=3) == [0]


def test_rows_take_memory() -> None:
    budget = ForwardBudget(100, max_bytes=40, bytes_per_token=1, bytes_per_row=10)
    queue = _queue(*_jobs(2, 2, 2, 2))
    assert len(choose_jobs(queue, _policy(budget, ALWAYS))) == 3


def test_a_shared_prefix_counts_once() -> None:
    jobs = [job_of(request([1, 2, 3, 4], [5], [6])) for _ in range(4)]
    assert _chosen(*jobs, budget=10) == [0, 1, 2]
    other = [job_of(request([1, 2, 3, n], [5], [6])) for n in range(4)]
    assert _chosen(*other, budget=12) == [0, 1]


def test_a_prefix_that_is_read_counts_for_every_job() -> None:
    jobs = [job_of(request([1, 2, 3, 4], [5], [6])) for _ in range(3)]
    for job in jobs:
        job.pieces = split_request(replace(job.rows, prefix_reads=1), ForwardBudget(100))
    assert _chosen(*jobs, budget=12) == [0, 1]


def test_a_job_joins_while_that_costs_the_others_less_than_a_launch() -> None:
    # The second job makes one other wait 5 tokens, and spares three jobs a launch.
    assert _chosen(*_jobs(1, 5, 9, 9), launch=2, join=6) == [0, 1]
    assert _chosen(*_jobs(1, 5, 9, 9), launch=1, join=6) == [0]
    # The longer the queue, the larger the forwards.
    assert len(_chosen(*_jobs(*[4] * 4), launch=4)) == 3
    assert len(_chosen(*_jobs(*[4] * 12), launch=4)) == 7


def test_the_busier_the_device_the_more_jobs_join() -> None:
    """For each job in flight another one is expected, which a saved launch serves sooner."""
    queue, policy = _queue(*_jobs(50, 50)), _policy(ForwardBudget(1000), 30)
    chosen = [len(choose_jobs(queue, policy, in_flight=jobs)) for jobs in (0, 1, 5)]
    assert chosen == [1, 2, 2]


def _with_adapters(*adapters: str) -> list[Job]:
    """Jobs of one row of four tokens each."""
    return [job_of(replace(request([], range(4)), adapter=adapter)) for adapter in adapters]


def test_jobs_with_another_adapter_are_passed_over() -> None:
    assert _chosen(*_with_adapters("", "a", "", "a")) == [0, 2]
    assert _chosen(*_with_adapters("a", "a", "")) == [0, 1]
    # A job that is passed over also waits for later jobs that join the forward.
    assert _chosen(*_with_adapters("", "", "a", "a"), launch=3) == [0, 1]
    assert _chosen(*_with_adapters("", "a", "", "a"), launch=3) == [0]


def test_a_forward_has_the_adapters_for_which_there_is_room() -> None:
    jobs = _with_adapters("a", "b", "", "a", "c", "b")
    assert _chosen(*jobs, adapters=2) == [0, 1, 3, 5]
    assert _chosen(*jobs, adapters=3) == [0, 1, 2, 3, 5]
    assert _chosen(*jobs, adapters=4) == [0, 1, 2, 3, 4, 5]
    # One that is passed over lets those behind it in, but not where a fitting one has no room.
    assert _chosen(*jobs, adapters=2, budget=8) == [0, 1]


def test_a_divided_job_of_another_adapter_has_its_turn_when_it_is_first() -> None:
    short, waiting = job_of(request([], [1])), job_of(request(range(12)), budget=8)
    under_way = job_of(replace(request(range(11)), adapter="a"), budget=8)
    under_way.next_piece = 1
    assert _chosen(short, waiting, under_way) == [0]
    assert _chosen(waiting, under_way) == [1]


def test_no_divided_job_begins_behind_one_of_another_adapter_that_is_under_way() -> None:
    short = job_of(request([], [1]))
    under_way = job_of(replace(request(range(11)), adapter="a"), budget=8)
    under_way.next_piece = 1
    assert _chosen(short, under_way, job_of(request(range(12)), budget=8)) == [0]


def test_short_jobs_overtake_a_divided_one_of_another_adapter_and_no_divided_one_does() -> None:
    large, small = request(range(12)), request([], [1])
    for begun in (0, 1):
        first, passed = job_of(small), job_of(replace(large, adapter="a"), budget=8)
        passed.next_piece = begun
        others = job_of(replace(small, adapter="b")), job_of(small), job_of(large, budget=8)
        assert _chosen(first, passed, *others) == [0, 3]


def test_a_job_that_runs_alone_lets_none_join_and_joins_none() -> None:
    jobs = _jobs(1, 1, 1)
    jobs[1].alone = True
    assert _chosen(*jobs) == [0]
    assert _chosen(*jobs[1:]) == [0]


def test_none_joins_a_forward_that_leaves_its_job_unfinished() -> None:
    jobs = [job_of(request(range(number)), budget=8) for number in (1, 11, 1)]
    assert _chosen(*jobs) == [0, 1]
    jobs[1].next_piece = 1
    assert _chosen(*jobs) == [0, 1, 2]


def test_a_second_divided_job_waits_until_the_first_is_finished() -> None:
    jobs = [job_of(request(range(number)), budget=8) for number in (2, 12, 11, 2)]
    jobs[2].next_piece = 1
    assert _chosen(*jobs) == [0, 2]
    assert _chosen(*jobs[1:]) == [1]


def test_after_the_last_piece_of_one_divided_job_the_next_may_start() -> None:
    jobs = [job_of(request(range(number)), budget=8) for number in (11, 12, 2)]
    jobs[0].next_piece = 1
    assert _chosen(*jobs) == [0, 1]


GRAPHS = GraphCost(tokens=1024, eager_tokens=3450)
"""As estimated for Qwen3-0.6B on an H100; a replay costs 480 tokens there."""


def _of_usual_size(number: int) -> list[Job]:
    """Jobs of 160 tokens: a prefix of 60 of their own, and 50 rows of 2."""
    prefixes = [[number * 1000 + token for token in range(60)] for number in range(number)]
    rows = [[1, 2]] * 50
    return [job_of(request(prefix, *rows), budget=10**6) for prefix in prefixes]


def _number_chosen(jobs: list[Job], graphs: GraphCost, launch: int = 480) -> int:
    return len(choose_jobs(_queue(*jobs), _policy(ForwardBudget(16384), launch, graphs)))


def test_jobs_fill_the_largest_graph_and_stay_in_it() -> None:
    jobs = _of_usual_size(8)
    assert _number_chosen(jobs, NO_GRAPHS) == 7
    assert _number_chosen(jobs, GRAPHS) == 6  # 960 tokens


def test_where_many_wait_the_launches_of_a_long_forward_cost_less_than_many_replays() -> None:
    assert _number_chosen(_of_usual_size(40), GRAPHS) * 160 > GRAPHS.eager_tokens
    # 2400 tokens in full replays: 2.4 launches, 3525 tokens; 15 jobs are the fewest that pay.
    dear = GraphCost(tokens=1024, eager_tokens=3450)
    assert [dear.leaving_pays(160 * jobs, 480) for jobs in (14, 15)] == [False, True]
    assert not dear.leaving_pays(2348, 480)
    assert dear.leaving_pays(2349, 480)


def test_graphs_as_large_as_what_launches_cost_change_nothing() -> None:
    jobs = _of_usual_size(60)
    assert _number_chosen(jobs, GraphCost(4096, 3450)) == _number_chosen(jobs, NO_GRAPHS)


def test_an_eager_forward_takes_what_its_launches_take_the_time_of() -> None:
    long = job_of(request([], range(1500)), budget=10**6)
    other = job_of(request([], range(1500)), budget=10**6)
    assert _number_chosen([long, other], NO_GRAPHS) == 1
    assert _number_chosen([long, other], GRAPHS) == 2
    third = job_of(request([], range(1500)), budget=10**6)
    assert _number_chosen([long, other, third], GRAPHS) == 2


def test_a_job_that_would_run_eagerly_by_itself_saves_what_its_launches_take() -> None:
    """In turn, three are done at 3450, 6900 and 10350. Two at 5480, and one at 8930, is less."""
    jobs = [job_of(request([], range(2500)), budget=10**6) for _ in range(3)]
    assert _number_chosen(jobs[:2], GRAPHS) == 1
    assert _number_chosen(jobs, GRAPHS) == 2
    assert _number_chosen(jobs, NO_GRAPHS) == 1


def _begun() -> Job:
    """A job of 160 tokens whose last piece, of 80, reads 60 held ones."""
    job = job_of(request(range(60), *[[1, 2]] * 50), budget=100)
    job.next_piece = len(job.pieces) - 1
    assert (job.piece.span.held, job.piece.num_tokens) == (60, 80)
    return job


def test_a_piece_behind_a_held_prefix_is_replayed_if_graphs_can_read_that() -> None:
    jobs = [_begun(), job_of(request([], range(1500)), budget=10**6)]
    assert _number_chosen(jobs, replace(GRAPHS, most_held=60)) == 1  # 1580 tokens
    assert _number_chosen(jobs, replace(GRAPHS, most_held=59)) == 2  # eager at once


def test_such_a_piece_costs_its_tokens_or_the_launches_of_an_eager_forward() -> None:
    def equivalents(most_held: int) -> int:
        graphs = replace(GRAPHS, most_held=most_held)
        return _policy(ForwardBudget(100), 480, graphs).equivalents(_begun().piece)

    assert equivalents(60) == 80
    assert equivalents(59) == GRAPHS.eager_tokens - 480


def _reading_more() -> Job:
    """A job of 160 tokens, of which two are read."""
    job = job_of(request([], [1] * 160), budget=10**6)
    rows = replace(job.rows, read_lens=int_array([2]))
    job.pieces = split_request(rows, ForwardBudget(10**6))
    return job


def test_a_job_that_no_graph_takes_does_not_make_others_eager() -> None:
    def queue_of(*kinds: str) -> list[Job]:
        """A queue to which jobs come in the order in which they were made."""
        return [_reading_more() if kind == "more" else _of_usual_size(1)[0] for kind in kinds]

    assert _number_chosen(queue_of("plain", "more", "plain"), GRAPHS) == 1
    assert _number_chosen(queue_of("plain", "more", "plain"), NO_GRAPHS) == 3
    assert _number_chosen(queue_of("more", "plain", "plain", "plain"), GRAPHS) == 4


def test_more_groups_than_the_largest_graph_holds_are_not_joined() -> None:
    jobs = [job_of(request([number], [1])) for number in range(10)]
    assert _number_chosen(jobs, GraphCost(64, 3450)) == 4
    without_prefix = [job_of(request([], [1, 2])) for _ in range(10)]  # one group
    assert _number_chosen(without_prefix, GraphCost(64, 3450)) == 10


def test_more_rows_and_prefixes_than_a_graph_has_states_for_are_not_joined() -> None:
    carries = replace(GRAPHS, carries=True)  # 64 rows, 8 prefixes
    with_prefix = [job_of(request([number], [1])) for number in range(20)]
    assert _number_chosen(with_prefix, GRAPHS) == 20
    assert _number_chosen(with_prefix, carries) == 8
    without_prefix = [job_of(request([], [1])) for _ in range(20)]
    assert _number_chosen([*with_prefix[:8], *without_prefix], carries) == 28
    of_one_prefix = [job_of(request([7], *[[1]] * 5)) for _ in range(20)]
    assert _number_chosen(of_one_prefix, GRAPHS) == 20
    assert _number_chosen(of_one_prefix, carries) == 12
    assert _number_chosen([job_of(request([], *[[1]] * 65))] * 2, carries) == 2  # eager at once


_ROWS = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 3), _ROWS), min_size=1, max_size=6))
def test_what_is_expected_to_be_replayed_has_room_in_a_graph(
    requests: list[tuple[int, list[int]]],
) -> None:
    """The sizes that are added up job by job are those of the layout."""
    graphs = GraphCost(64, 10**3 * ALWAYS, carries=True)  # nothing pays for eager launches
    jobs = [
        job_of(request([prefix] * prefix, *([1] * length for length in rows)), budget=10**6)
        for prefix, rows in requests
    ]
    chosen = jobs[: _number_chosen(jobs, graphs, ALWAYS)]

    def holds(jobs: list[Job]) -> bool:
        return graphs.hold(ForwardSize.of(plan_forward([job.piece for job in jobs]).layout.groups))

    assert holds(chosen)
    assert len(chosen) == len(jobs) or not holds(jobs[: len(chosen) + 1])


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.integers(0, 900),
    st.integers(1, 1500),
    st.integers(0, 4000),
)
def test_no_forward_lies_between_the_graphs_and_what_pays_for_its_launches(
    lengths: list[int], launch: int, graph_tokens: int, eager_tokens: int
) -> None:
    jobs = [job_of(request([], [1] * length), budget=10**6) for length in lengths]
    graphs = GraphCost(graph_tokens, eager_tokens)
    count = _number_chosen(jobs, graphs, launch)
    tokens = sum(lengths[:count])
    assert count >= 1
    replayed = graphs.hold(ForwardSize(tokens, 1, 0, count))  # without a prefix: one group
    if not graphs.hold(ForwardSize(lengths[0], 1, 0, 1)):
        return
    assert replayed or graphs.leaving_pays(tokens, launch)
    if not replayed:
        replays = tokens + launch * tokens / graph_tokens  # full ones, the cheapest there are
        assert graphs.eager_tokens <= replays
        assert launch + tokens <= replays
