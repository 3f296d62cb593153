"""Checks of packed rows that another process sent, which may not be one of our front ends."""

from __future__ import annotations

from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.frontend.overrides import checked_overrides
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.scheduling.budget import limits_of, load_of
from sglang_prefill_ext.wire.checks import TOKEN_BYTES
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels


def check_foreign_rows(rows: PackedRows, path: PackedPath) -> None:
    """Refuse what no front end of ours sends.

    It would take too much memory, break forwards that other requests share, or on a GPU end the
    scheduler.

    Raises:
        PackingError: the rows are too many, too long or too large; the model does not have such ids
            or embeddings; or a token is to be drawn.
        RequestError: see `checked_overrides`.
    """
    _check_size(rows, path)
    _check_ids(rows, path)
    if rows.read.sampling is not None:
        raise PackingError("packed rows of another process ask for a token that is drawn")
    if len(rows.overrides):
        if path.encoder is not None or path.embeddings.with_tokens:
            raise PackingError("packed rows have embeddings for a model that takes none")
        checked_overrides("embed_overrides", rows.overrides, path.embeddings)


def _check_size(rows: PackedRows, path: PackedPath) -> None:
    longest = min(path.link.longest_prompt(), path.link.longest_packed)
    if rows.prefix_len + int(rows.suffix_lens.max()) > longest:
        raise PackingError(f"packed rows are longer than the longest prompt of {longest}")
    width = path.embeddings.width
    # No vector is wider than its hidden state, which may come with it.
    num_values = rows.read.of_width(width, width).num_values(rows.num_reads)
    load, most = load_of(rows, num_values), limits_of(path.config)
    if load.rows > most.rows:
        raise PackingError(
            f"{load.rows} packed rows exceed the limit of {most.rows} "
            f"({flag_name('max_queued_rows')})"
        )
    needed = load.bytes
    if path.encoder is not None:  # its scheduler makes whole prompts of them
        needed += (rows.num_prompt_tokens - len(rows.tokens)) * TOKEN_BYTES
    if needed > most.bytes:
        raise PackingError(
            f"packed rows and their answer of {needed >> 20} MiB exceed the limit of "
            f"{most.bytes >> 20} MiB ({flag_name('max_queued_mib')})"
        )


def _check_ids(rows: PackedRows, path: PackedPath) -> None:
    known, ids = path.label_vocab_size, rows.read.ids
    if int(rows.tokens.max()) >= path.vocab_size:
        raise PackingError(f"packed tokens lie outside the vocabulary of {path.vocab_size}")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise PackingError(f"packed labels lie outside the vocabulary of {known}")
    if isinstance(rows.read, Labels) and rows.read.num_best > known + 1:
        raise PackingError(f"packed rows ask for more tokens than the vocabulary of {known}")
