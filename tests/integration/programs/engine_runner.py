"""Uses the offline engine as a program would; ``engine_runner.py MODEL_DIR OUT BODIES``.

Writes what it saw to ``OUT`` as JSON. Run as a script, because the engine ends every child
process of the process that it lives in.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import sglang
import torch
from sglang.srt.managers.tokenizer_manager_score_mixin import ScoreResult

from sglang_prefill_ext.errors import ConfigError

CPU = {"device": "cpu", "dtype": "float32", "max_total_tokens": 8192}
PREFILL_ONLY = {"enable_prefill_only": True, "prefill_only_max_forward_tokens": 1024}


def refusal(model: str, **kwargs: Any) -> str:
    """The message with which the engine refuses to start."""
    try:
        sglang.Engine(model_path=model, **CPU, **kwargs)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{kwargs} was accepted")


def living_children() -> list[str]:
    """Names of this process's living descendants, without zombies."""
    children = psutil.Process().children(recursive=True)
    return [p.name() for p in children if p.status() != psutil.STATUS_ZOMBIE]


def plain(result: ScoreResult) -> dict[str, Any]:
    return {"scores": result.scores, "token_logprobs": result.token_logprobs}


def raised(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("no ValueError")


def with_tensors(body: dict[str, Any]) -> dict[str, Any]:
    """Turn a body's embeddings into tensors, as a program has them, in the dtype of some model."""
    stacked = body.get("stacked_query_item_embed_overrides")
    if stacked is None:
        return body
    tensors = [torch.tensor(each, dtype=torch.bfloat16) for each in stacked]
    return body | {"stacked_query_item_embed_overrides": tensors}


def another_engine(model: str, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers of an engine that is made after another one, with SGLang's HTTP module loaded."""
    engine = sglang.Engine(model_path=model, **PREFILL_ONLY, **CPU)
    try:
        scores = [plain(engine.score(**body)) for body in bodies]
        counters = engine.tokenizer_manager._prefill_only.path.metrics.as_dict()
    finally:
        engine.shutdown()
    return {"score": scores, "requests": counters["requests"]}


def main() -> None:
    # An engine adds routes to the application; the engine after it has to replace them.
    importlib.import_module("sglang.srt.entrypoints.http_server")
    model, out = sys.argv[1], Path(sys.argv[2])
    bodies = [with_tensors(body) for body in json.loads(Path(sys.argv[3]).read_text())]
    report: dict[str, Any] = {
        "refused_value": refusal(model, enable_prefill_only=True, prefill_only_max_items=0),
        "refused_alone": refusal(model, prefill_only_max_items=5),
    }
    engine = sglang.Engine(model_path=model, prefill_only_max_items=50, **PREFILL_ONLY, **CPU)
    try:
        report["score"] = [plain(engine.score(**body)) for body in bodies]
        report["async_score"] = [
            plain(engine.loop.run_until_complete(engine.async_score(**body))) for body in bodies
        ]
        many = bodies[0] | {"items": [[5]] * 51}
        report["too_many_items"] = raised(lambda: engine.score(**many))
        sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
        generated = engine.generate(input_ids=[5, 6, 7], sampling_params=sampling)
        report["generated"] = generated["output_ids"]
        report["counters"] = engine.tokenizer_manager._prefill_only.path.metrics.as_dict()
        report["no_token_id"] = raised(lambda: engine.score(**bodies[0] | {"items": [[5], ["x"]]}))
        report["children"] = living_children()
    finally:
        engine.shutdown()
    report["children_after"] = living_children()
    report["another"] = another_engine(model, bodies)
    out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
