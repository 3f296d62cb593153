import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.modelmaker import catalogue
from sglang_prefill_ext.modelmaker.catalogue import CATEGORIES, Item, Query, ndcg

any_item = st.sampled_from(catalogue.items())
any_query = st.sampled_from(catalogue.queries("train") + catalogue.queries("test"))


def test_every_category_has_its_items() -> None:
    found = [item.category for item in catalogue.items()]
    assert {name: found.count(name) for name in found} == {
        category.names[0]: catalogue.ITEMS_PER_CATEGORY for category in CATEGORIES
    }
    assert len(found) >= 400


def test_the_same_on_every_call() -> None:
    items, queries = catalogue.items(), catalogue.queries("test")
    catalogue.items.cache_clear()
    catalogue.queries.cache_clear()
    assert catalogue.items() == items
    assert catalogue.queries("test") == queries


def test_test_queries_are_new_combinations_of_known_words() -> None:
    train = {query.text for query in catalogue.queries("train")}
    test = {query.text for query in catalogue.queries("test")}
    assert not train & test
    assert len(test) == round(catalogue.TEST_FRACTION * (len(train) + len(test)))
    assert _words(test) <= _words(train)


@given(any_item)
def test_items_say_what_they_are(item: Item) -> None:
    assert item.category in item.text
    assert all(value in item.text for value in item.attributes.values())


@given(any_query)
def test_queries_say_what_they_want(query: Query) -> None:
    names = next(c.names for c in CATEGORIES if c.names[0] == query.category)
    assert any(name in query.text for name in names)
    assert query.wanted
    assert all(value in query.text for value in query.wanted.values())


@given(any_query, any_item)
def test_relevance_counts_what_is_met(query: Query, item: Item) -> None:
    met = [item.attributes[name] == value for name, value in query.wanted.items()]
    grade = catalogue.relevance(query, item)
    assert (grade == 0) == (query.category != item.category)
    if grade:
        assert (grade == catalogue.MAX_RELEVANCE) == all(met)
        assert (grade == 1) == (not any(met))


def test_every_grade_occurs() -> None:
    pairs = ((q, i) for q in catalogue.queries("test")[:20] for i in catalogue.items())
    assert {catalogue.relevance(query, item) for query, item in pairs} == {0, 1, 2, 3}


def test_prompt_parts_join_to_the_prompt() -> None:
    prompt = catalogue.query_part("red tent") + catalogue.item_part("a tent, red.")
    assert prompt == "Query: red tent\nItem: a tent, red.\nRelevant:"


def _words(texts: set[str]) -> set[str]:
    return {word for text in texts for word in text.split()}


grades = st.lists(st.integers(0, 3), min_size=1, max_size=30)
places = st.integers(1, 40)


def test_worked_example() -> None:
    # DCG 7 + 3/log2(3) + 7/2 + 0 + 1/log2(6) + 3/log2(7); ideal order 3 3 2 2 1 0.
    assert ndcg([3, 2, 3, 0, 1, 2], 6) == pytest.approx(13.84826 / 14.59539, abs=1e-5)


def test_only_the_first_places_count() -> None:
    assert ndcg([3, 0, 0, 2], 1) == 1.0
    assert ndcg([0, 3], 1) == 0.0


@pytest.mark.parametrize("relevance", [[], [0, 0, 0]])
def test_nothing_relevant_is_zero(relevance: list[int]) -> None:
    assert ndcg(relevance, 10) == 0.0


@given(grades, places)
def test_bounded_and_one_for_the_ideal_order(relevance: list[int], k: int) -> None:
    assert 0.0 <= ndcg(relevance, k) <= 1.0
    if any(relevance):
        assert ndcg(sorted(relevance, reverse=True), k) == 1.0


@given(grades, places, st.data())
def test_moving_a_better_item_up_never_hurts(
    relevance: list[int], k: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(relevance) - 1))
    second = data.draw(st.integers(first, len(relevance) - 1))
    better = list(relevance)
    better[first], better[second] = sorted((relevance[first], relevance[second]), reverse=True)
    assert ndcg(better, k) >= ndcg(relevance, k) - 1e-12
