"""What the known prompts use of SGLang's own prefill; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_BATCH = "sglang.srt.managers.schedule_batch"
_EXECUTOR = "sglang.srt.model_executor"

PROBE_USES = (
    Use(
        id="U120",
        target=f"{_BATCH}.Req.refresh_fill_ids",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="the tokens to compute",
        signature="(self)",
    ),
    Use(
        id="U121",
        target=f"{_BATCH}.ScheduleBatch.init_new",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="a batch of one prompt",
        signature="(cls, reqs, req_to_token_pool, token_to_kv_pool_allocator, tree_cache, "
        "model_config, enable_overlap, spec_algorithm, chunked_req=None, dllm_config=None)",
    ),
    Use(
        id="U122",
        target=f"{_BATCH}.ScheduleBatch.prepare_for_extend",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="gives it slots",
        signature="(self)",
    ),
    Use(
        id="U123",
        target=f"{_EXECUTOR}.forward_batch_info.ForwardBatch.init_new",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="the batch as the model runner takes it",
        signature="(cls, batch, model_runner, *, capture_hidden_mode=None, "
        "return_hidden_states_before_norm, extend_position_info=None, "
        "spec_mrope_positions=None, kv_loc_plan=None, write_cols=None)",
    ),
    Use(
        id="U124",
        target=f"{_EXECUTOR}.model_runner.ModelRunner.forward",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="SGLang's own answer",
        signature="(self, forward_batch, skip_attn_backend_init=None, pp_proxy_tensors=None, "
        "reinit_attn_backend=False, split_forward_count=1)",
    ),
    Use(
        id="U125",
        target=f"{_EXECUTOR}.model_runner.ModelRunnerOutput",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="where it is",
        members=("logits_output",),
    ),
    Use(
        id="U126",
        target="sglang.srt.layers.logits_processor.LogitsProcessorOutput",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths", "border.model.sampler"),
        why="its logits; the log-probs by which tokens were drawn",
        members=(
            *"next_token_logits next_token_logprobs next_token_top_logprobs_val".split(),
            *"next_token_top_logprobs_idx next_token_token_ids_logprobs_val".split(),
        ),
    ),
    Use(
        id="U127",
        target="sglang.srt.sampling.sampling_params.SamplingParams",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.scheduler.ask_both_paths",
                "border.tokenizer_manager.token_output",
                "frontend.token.token_call",
            ),
            "border.tokenizer_manager.direct_generate",
        ),
        why="how many tokens are generated, and what changes the first",
        members=(
            *"max_new_tokens temperature n top_k ignore_eos stop_token_ids no_stop_trim".split(),
            *"skip_special_tokens spaces_between_special_tokens beam_width".split(),
            *"top_p min_p sampling_seed min_new_tokens normalize verify".split(),
            *"json_schema regex ebnf structural_tag logit_bias".split(),
            *"stop_strs stop_regex_strs custom_params watermark".split(),
        ),
    ),
    Use(
        id="U128",
        target="sglang.srt.speculative.spec_info.SpeculativeAlgorithm",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths", "border.scheduler.radix"),
        why="the model itself answers; whether another one drafts, and has K/V in the same slots",
        members=("NONE", "is_none", "is_ngram"),
    ),
    Use(
        id="U129",
        target="sglang.srt.mem_cache.common.release_kv_cache",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.ask_both_paths",),
        why="takes the slots back",
        signature="(req, tree_cache, *, checkpoint)",
    ),
)
