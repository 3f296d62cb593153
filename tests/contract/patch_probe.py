"""Patch the installed SGLang, then replace targets by changed ones, and print the results as JSON.

Run as a script, so that the process that runs the tests stays unpatched; in one process,
because importing SGLang takes most of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import pkgutil
import sys
import warnings
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")

from sglang.srt import server_args  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

from patches.tools import lock  # noqa: E402
from sglang_prefill_ext.border import patches  # noqa: E402
from sglang_prefill_ext.errors import UnsupportedSGLangError  # noqa: E402
from sglang_prefill_ext.patching import doctor, scan  # noqa: E402
from sglang_prefill_ext.patching.merged import check_merged, load_added  # noqa: E402
from sglang_prefill_ext.patching.source import underlying  # noqa: E402
from sglang_prefill_ext.patching.spec import Group, Kind, Patch  # noqa: E402
from sglang_prefill_ext.patching.table import PATCHES  # noqa: E402

ENGINE_GROUPS = tuple(group for group in Group if group is not Group.FLAGS)


def other_parameters(self: Any, running_batch: Any) -> Any:
    """Replaces `Scheduler.get_next_batch_to_run`, with other parameters."""
    return self, running_batch


def other_names(self: Any, recv_req: Any) -> None:
    """Replaces `Scheduler.abort_request`; lacks the names that the hook relies on."""
    self.forget(recv_req)


def other_body(self: Any, for_health_check: bool = False, ignore_waiting: bool = False) -> Any:
    """Replaces `Scheduler.is_fully_idle`; only its body is different."""
    return self.running_batch.is_empty() and not ignore_waiting


def other_head(head: Any) -> Any:
    """Replaces `should_apply_lm_head_quant_method`, which hooks use unchanged."""
    return head


def other_score(p_yes: Any, p_no: Any) -> Any:
    """Replaces `_qwen3_rerank_score`, which hooks use unchanged; only its body is different."""
    return p_yes, p_no


class OtherLock:
    """Replaces `RWLock`; lacks the member that hooks use."""


def attributes() -> dict[str, object]:
    owners = {patch.id: pkgutil.resolve_name(patch.owner) for patch in PATCHES}
    return {patch.id: vars(owners[patch.id])[patch.attribute] for patch in PATCHES}


def run_doctor(json_output: bool) -> dict[str, Any]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = doctor.main(json_output=json_output, everything=False)
    return {"status": status, "output": output.getvalue()}


def with_flags_only() -> dict[str, Any]:
    before = set(sys.modules)
    load_plugins()
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    return {
        "applied": [state.id for state in patches.states() if state.applied],
        "options": sorted(parser._option_string_actions),
        "imported": sorted(set(sys.modules) - before),
    }


def hook_problem(patch: Patch) -> str:
    """The reason why the hook cannot be called like its target; empty if it can."""
    if patch.kind is Kind.ATTRIBUTE:
        return ""
    function: Any = underlying(vars(pkgutil.resolve_name(patch.owner))[patch.attribute])
    hook = pkgutil.resolve_name(patch.hook)
    asynchronous = inspect.iscoroutinefunction(function)
    if asynchronous and patch.kind is not Kind.AROUND:
        return "only an AROUND hook can await its target"
    if asynchronous != inspect.iscoroutinefunction(hook):
        return "one of hook and target is a coroutine function"
    first = 0 if patch.kind is Kind.BEFORE else 1
    parameters = inspect.signature(function).parameters.values()
    named = {
        each.name: None for each in parameters if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD)
    }
    try:
        inspect.signature(hook).bind(*range(first + len(parameters) - len(named)), **named)
    except TypeError as error:
        return str(error)
    return ""


def with_everything() -> dict[str, Any]:
    patches.apply(tuple(Group))
    patches.apply(tuple(Group))
    states = [dataclasses.asdict(state) for state in patches.states()]
    added = load_added()
    return {
        "states": states,
        "merged": [str(found) for patch in PATCHES for found in check_merged(patch, added)],
        "hook_problems": {patch.id: hook_problem(patch) for patch in PATCHES},
    }


def refused() -> dict[str, Any]:
    """Apply all patches. Return why that was refused (empty if it was not), and what it changed."""
    before = attributes()
    try:
        patches.apply(ENGINE_GROUPS)
        refusal = ""
    except UnsupportedSGLangError as error:
        refusal = str(error)
    changed = [key for key, value in attributes().items() if value is not before[key]]
    return {"refusal": refusal, "changed": changed}


def on_changed_uses() -> dict[str, Any]:
    changes = {
        "sglang.srt.layers.logits_processor.should_apply_lm_head_quant_method": other_head,
        "sglang.srt.utils.aio_rwlock.RWLock": OtherLock,
        "sglang.srt.entrypoints.openai.serving_rerank._qwen3_rerank_score": other_score,
    }
    with contextlib.ExitStack() as stack:
        for target, change in changes.items():
            stack.enter_context(mock.patch(target, change))
        return {**refused(), "json": run_doctor(json_output=True)}


def on_a_changed_sglang() -> dict[str, Any]:
    changes = {
        "get_next_batch_to_run": other_parameters,
        "abort_request": other_names,
        "is_fully_idle": other_body,
    }
    scheduler = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    with mock.patch.multiple(scheduler, **changes):
        return {
            **refused(),
            "text": run_doctor(json_output=False),
            "json": run_doctor(json_output=True),
        }


def on_merged_diffs() -> dict[str, Any]:
    """Run `doctor` on an SGLang that has one of three diffs in P10's place, and P76's only one."""
    scheduler = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    session = importlib.import_module("sglang.srt.session.session_controller").Session
    with (
        mock.patch.object(scheduler, "_refuse_unusable_embeds", other_names, create=True),
        mock.patch.object(session, "clear_turns", other_names, create=True),
    ):
        return {"text": run_doctor(json_output=False), "json": run_doctor(json_output=True)}


def main() -> None:
    report = {
        "flags": with_flags_only(),
        "stock": run_doctor(json_output=True),
        "lock": lock.dump(lock.build(scan.read_package())),
        "changed_uses": on_changed_uses(),
        "changed": on_a_changed_sglang(),
        "merged": on_merged_diffs(),
        "everything": with_everything(),  # last, as patches stay
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
