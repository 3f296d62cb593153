"""How groups are divided into tiles, and choices that measurements found best."""

from __future__ import annotations

from hypothesis import given, settings

from sglang_prefill_ext.layout import tiling
from sglang_prefill_ext.layout.tiling import Block, cut_group
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.strategies import group, layouts

START = 7


def _shapes(blocks: tuple[Block, ...]) -> list[list[tuple[int, ...]]]:
    return [[tile.segment_lens for tile in block.tiles] for block in blocks]


@settings(deadline=None)
@given(layouts(max_groups=1))
def test_tiles_are_the_segments_in_order(forward: ForwardLayout) -> None:
    (span,) = forward.groups
    blocks = cut_group(span, START)
    tiles = [tile for block in blocks for tile in block.tiles]
    lens = [length for tile in tiles for length in tile.segment_lens]
    segments = [span.fresh] * (span.fresh > 0) + span.suffix_lens.tolist()
    assert lens == (segments if span.num_rows > 1 else [sum(segments)])
    assert [tile.start for tile in tiles] == [START, *(tile.stop for tile in tiles[:-1])]
    assert tiles[-1].stop == START + span.num_tokens


@settings(deadline=None)
@given(layouts(max_groups=1))
def test_tiles_with_several_segments_are_short(forward: ForwardLayout) -> None:
    for block in cut_group(forward.groups[0], START):
        for tile in block.tiles:
            if len(tile.segment_lens) > 1:
                whole = tile.begins_with_prefix
                limit = tiling.WHOLE_GROUP_TOKENS if whole else tiling.JOIN_TOKENS
                assert tile.num_tokens <= limit


@settings(deadline=None)
@given(layouts(max_groups=1))
def test_the_outside_prefix_is_absent_or_copied_or_merged(forward: ForwardLayout) -> None:
    (span,) = forward.groups
    for block in cut_group(span, START):
        assert block.held == span.held
        assert (block.outside == 0) + block.copies_prefix + block.merges_prefix == 1


def test_a_small_group_is_one_tile() -> None:
    (block,) = cut_group(group(0, 60, *[2] * 50), START)
    assert _shapes((block,)) == [[(60, *[2] * 50)]]
    assert block.tiles[0].begins_with_prefix
    assert block.outside == 0


def test_a_small_group_whose_mask_costs_more_than_a_call_is_divided() -> None:
    prefix, rows = cut_group(group(0, 128, 64, 64), START)
    assert _shapes((prefix, rows)) == [[(128,)], [(64,), (64,)]]


def test_no_larger_group_has_a_mask_even_if_that_would_save_a_call() -> None:
    most = tiling.WHOLE_GROUP_TOKENS
    assert _shapes(cut_group(group(0, most - 4, 2, 2), START)) == [[(most - 4, 2, 2)]]
    assert _shapes(cut_group(group(0, most - 3, 2, 2), START)) == [[(most - 3,)], [(2, 2)]]


def test_a_small_group_behind_a_held_prefix_copies_it_once() -> None:
    (block,) = cut_group(group(40, 60, *[2] * 50), START)
    assert block.outside == 40
    assert block.copies_prefix


def test_long_rows_are_tiles_of_their_own_with_a_copied_prefix() -> None:
    prefix, rows = cut_group(group(0, 50, *[150] * 50), START)
    assert _shapes((prefix, rows)) == [[(50,)], [(150,)] * 50]
    assert prefix.outside == 0
    assert rows.outside == 50
    assert rows.copies_prefix


def test_short_rows_are_joined_and_a_long_prefix_is_merged() -> None:
    prefix, rows = cut_group(group(100, 900, *[30] * 5), START)
    assert _shapes((prefix, rows)) == [[(900,)], [(30, 30), (30, 30), (30,)]]
    assert prefix.outside == 100
    assert prefix.merges_prefix  # its mask would be large
    assert rows.outside == 1000
    assert rows.merges_prefix


def test_a_prefix_and_its_only_row_are_one_causal_sequence() -> None:
    (block,) = cut_group(group(0, 50, 1000), START)
    assert _shapes((block,)) == [[(1050,)]]
    assert block.outside == 0


def test_rows_without_a_prefix_are_joined_in_order() -> None:
    (block,) = cut_group(group(0, 0, 30, 30, 10, 200, 5), START)
    assert _shapes((block,)) == [[(30, 30), (10,), (200,), (5,)]]


def test_a_chunk_of_a_prefix_is_one_tile() -> None:
    (block,) = cut_group(group(2048, 2048), START)
    assert _shapes((block,)) == [[(2048,)]]
    assert block.merges_prefix
