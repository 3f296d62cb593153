"""Entry point of the plugin (group ``sglang.srt.plugins``)."""

from __future__ import annotations


def register() -> None:
    """Add the flags to SGLang; everything else is applied only once they ask for it.

    SGLang calls this in every process before it parses arguments. Only `ServerArgs` is
    touched here, so an installed but unused plugin costs nothing and changes nothing.
    """
    from sglang_prefill_ext.border.activation import apply_flags

    apply_flags()
