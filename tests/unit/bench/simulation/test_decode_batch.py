from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.decode_batch import Limits, choose_batch
from bench.simulation.decode_policies import Generation

LONGEST = 30
SEQUENCES = st.builds(
    Generation,
    number=st.just(0),
    prompt_tokens=st.integers(1, LONGEST // 2),
    generated=st.integers(0, LONGEST // 2 - 1),
)


@st.composite
def _queues(draw: st.DrawFn) -> tuple[list[Generation], Limits]:
    """Sequences in some order, of which some are resident, as many as the pool can hold."""
    order = draw(st.lists(SEQUENCES, max_size=12))
    pool = draw(st.integers(LONGEST, 8 * LONGEST))
    limits = Limits(draw(st.integers(1, 8)), pool, draw(st.integers(0, 5)))
    for each in draw(st.permutations(order)):
        if each.tokens <= pool and draw(st.booleans()):
            each.resident = True
            pool -= each.tokens
    return order, limits


@given(_queues(), st.booleans())
def test_the_pool_and_the_slots_are_enough_and_somebody_is_served(
    queue: tuple[list[Generation], Limits], keep: bool
) -> None:
    order, limits = queue
    choice = choose_batch(order, limits, keep=keep)
    assert bool(choice.batch) == bool(order)
    assert len(choice.batch) <= limits.max_running
    assert choice.batch == [each for each in order if each in choice.batch]
    assert all(each.resident and each not in choice.batch for each in choice.retracted)
    left = [each for each in order if each.resident and each not in choice.retracted]
    beside = [each for each in left if each not in choice.batch]
    used = sum(each.tokens for each in beside) + sum(each.tokens + 1 for each in choice.batch)
    assert used <= limits.pool_tokens
    assert keep or not beside


@given(_queues(), st.booleans())
def test_none_enters_past_one_that_waits_for_room(
    queue: tuple[list[Generation], Limits], keep: bool
) -> None:
    order, limits = queue
    choice = choose_batch(order, limits, keep=keep)
    outside = [each for each in order if not each.resident]
    entered = [each for each in choice.batch if not each.resident]
    assert entered == outside[: len(entered)]


@given(_queues())
def test_where_residents_stay_the_last_ones_are_retracted(
    queue: tuple[list[Generation], Limits],
) -> None:
    order, limits = queue
    choice = choose_batch(order, limits, keep=True)
    residents = [each for each in order if each.resident]
    count = len(choice.retracted)
    assert choice.retracted == residents[::-1][:count]


def _sequence(tokens: int, *, resident: bool = False) -> Generation:
    return Generation(0, prompt_tokens=tokens, resident=resident)


def test_preemption_frees_a_slot_and_only_where_asked_for_memory() -> None:
    first, second, resident = _sequence(5), _sequence(9), _sequence(6, resident=True)
    order, limits = [first, second, resident], Limits(2, 20, reserve_tokens=0)
    kept = choose_batch(order, limits, keep=True)
    assert (kept.batch, kept.retracted) == ([first, resident], [])
    freed = choose_batch(order, limits, keep=False)
    assert (freed.batch, freed.retracted) == ([first, second], [resident])


def test_who_enters_leaves_a_reserve_unless_alone() -> None:
    limits = Limits(4, 20, reserve_tokens=3)
    resident, waiting = _sequence(5, resident=True), _sequence(8)
    assert choose_batch([resident, waiting], limits, keep=True).batch == [resident]
    waiting.prompt_tokens = 7
    assert choose_batch([resident, waiting], limits, keep=True).batch == [resident, waiting]
    assert len(choose_batch([_sequence(19)], limits, keep=True).batch) == 1
