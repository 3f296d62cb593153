"""Entry point of the plugin (group ``sglang.srt.plugins``)."""

from __future__ import annotations


def register() -> None:
    """Add the flags to SGLang; everything else is applied only once they ask for it.

    SGLang calls this in every process before it parses arguments. Only `ServerArgs`, and how
    `Engine` makes one, are touched here, so an installed but unused plugin changes nothing. The one
    exception is a machine where SGLang finds no device: see `platforms.cpu`.
    """
    from sglang_prefill_ext.border.activation import apply_flags

    apply_flags()
