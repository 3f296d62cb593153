"""The one list of what this package changes in SGLang. Pure data: importing it imports nothing."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.compat"
_MANAGERS = "sglang.srt.managers"
_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"
_SCORE_MIXIN = f"{_MANAGERS}.tokenizer_manager_score_mixin.TokenizerManagerScoreMixin"
_SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"
_TOKENIZER_MANAGER = f"{_MANAGERS}.tokenizer_manager.TokenizerManager"

_ARGUMENTS = ("0002-plugin-server-arguments.patch",)
_MESSAGES = ("0003-plugin-message-types.patch",)
_OUT_OF_BAND = ("0004-out-of-band-work.patch",)
_SCORE = ("0005-score-fast-path.patch",)
_ERRORS = ("0013-keep-headers-of-http-errors.patch",)
_PULLED = ("0014-hooks-on-pulled-requests.patch",)
_PROMPTS = ("0007-reject-empty-prompts.patch", "0008-reject-out-of-vocabulary-ids.patch")

# What these diffs add to SGLang: once a release has it, the hooks move there.
_HAS_ARGUMENTS = ("sglang.srt.plugins.server_arguments.register_server_argument",)
_HAS_MESSAGES = ("sglang.srt.plugins.message_handlers.register_message_handler",)
_HAS_OUT_OF_BAND = (f"{_MANAGERS}.auxiliary_work.register_auxiliary_work",)
_HAS_SCORE = (f"{_SCORE_MIXIN}.execute_score",)
_HAS_ERRORS = (f"{_SERVING}.create_http_error_response",)
_HAS_PULLED = (f"{_MANAGERS}.pulled_requests.register_pulled_requests_hook",)
_HAS_PROMPTS = (
    f"{_TOKENIZER_MANAGER}._validate_prompt_not_empty",
    f"{_TOKENIZER_MANAGER}._validate_input_ids_in_vocab",
)

PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P01",
        target=f"{_SERVER_ARGS}.add_cli_args",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.flags:add_flags",
        group=Group.FLAGS,
        why="SGLang's parser would not know --enable-prefill-only and its knobs.",
        signature="(parser)",
        relies_on=("parser.add_argument",),
        fingerprints={"0.5.23": "af9b7887090bb720a8855b81805392a485f830d3ac5f0c565b23eb85a1b0d95f"},
        diffs=_ARGUMENTS,
        remove_when=_HAS_ARGUMENTS,
    ),
    Patch(
        id="P02",
        target=f"{_SERVER_ARGS}.from_cli_args",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.flags:attach_config",
        group=Group.FLAGS,
        why="Only declared fields are copied from the command line: our flags would be dropped.",
        signature="(cls, args)",
        relies_on=("record_fields", "args"),
        fingerprints={"0.5.23": "8e4a5631cf3ea5ec16238d33745e6ac6d598dde7bbef4ec1b3c6a5a745394916"},
        diffs=_ARGUMENTS,
        remove_when=_HAS_ARGUMENTS,
    ),
    Patch(
        id="P03",
        target="sglang.srt.entrypoints.engine.Engine.server_args_class",
        kind=Kind.ATTRIBUTE,
        hook=f"{_HOOKS}.flags:server_args_from_kwargs",
        group=Group.FLAGS,
        why="Engine(enable_prefill_only=True) would fail: ServerArgs refuses unknown keywords.",
        relies_on=("self.server_args_class",),
        diffs=_ARGUMENTS,
        remove_when=_HAS_ARGUMENTS,
        only_if_imported=True,
    ),
    Patch(
        id="P04",
        target=f"{_SERVER_ARGS}.check_server_args",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.flags:refuse_impossible",
        group=Group.FLAGS,
        why="Combinations under which packed work could never run would be accepted in silence.",
        signature="(self)",
        relies_on=("check_server_args",),
        fingerprints={"0.5.23": "2cdfa63e9fa39693f01be1cb69a5b7f9b68af880fbba5adebb772eb7a0ea74b3"},
        diffs=_ARGUMENTS,
        remove_when=_HAS_ARGUMENTS,
    ),
    Patch(
        id="P10",
        target=f"{_SCHEDULER}.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.scheduler_hooks:attach_runtime",
        group=Group.SCHEDULER,
        why="The scheduler would have no handler for packed requests.",
        signature="(self)",
        relies_on=("self._request_dispatcher", "TypeBasedDispatcher"),
        fingerprints={"0.5.23": "a79b2747a8c40a56921e2bb2ab097e0e4a819efa0b266d6c1c7258a8b1c366ad"},
        diffs=_MESSAGES,
        remove_when=_HAS_MESSAGES,
    ),
    Patch(
        id="P11",
        target=f"{_SCHEDULER}.get_next_batch_to_run",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.scheduler_hooks:step_then_next_batch",
        group=Group.SCHEDULER,
        why="Packed requests would wait for ever: nothing in the event loops would run them.",
        signature="(self, running_batch, last_batch)",
        relies_on=("NextBatchPlan",),
        fingerprints={"0.5.23": "2c17ff30edbe675b1ee02bfab2fa09cdfa231e5589d2e85b0923e37eac82c01d"},
        diffs=_OUT_OF_BAND,
        remove_when=_HAS_OUT_OF_BAND,
    ),
    Patch(
        id="P12",
        target=f"{_SCHEDULER}.is_fully_idle",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.scheduler_hooks:is_fully_idle",
        group=Group.SCHEDULER,
        why="Cache flushes, weight updates and sleep would start while packed work is under way.",
        signature="(self, for_health_check=False, ignore_waiting=False)",
        relies_on=("self.running_batch.is_empty",),
        fingerprints={"0.5.23": "5e5ea58c6a82e226dfdd24d1629be79971e2bf44cd8703d9960f228abcbbd441"},
        diffs=_OUT_OF_BAND,
        remove_when=_HAS_OUT_OF_BAND,
    ),
    Patch(
        id="P13",
        target=f"{_SCHEDULER}.abort_request",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.scheduler_hooks:abort_packed",
        group=Group.SCHEDULER,
        why="Aborts search only stock queues: a packed request of a client that left would run.",
        signature="(self, recv_req)",
        relies_on=("recv_req.rid", "recv_req.abort_all"),
        fingerprints={"0.5.23": "9baa7e36acfb7f74982552ba47909c187f9f6d25e4acefc9b5a63cfccf97acad"},
        diffs=_OUT_OF_BAND,
        remove_when=_HAS_OUT_OF_BAND,
    ),
    Patch(
        id="P14",
        target=f"{_MANAGERS}.scheduler_components.load_inquirer.SchedulerLoadInquirer.get_loads",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.scheduler_hooks:add_packed_load",
        group=Group.SCHEDULER,
        why="Data-parallel balancing and load reports would take a replica full of packed work "
        "for an idle one.",
        signature="(self)",
        relies_on=("LoadSnapshot", "num_waiting_reqs", "num_total_tokens"),
        fingerprints={"0.5.23": "d72b0bf022b54385208bece8ac3e26eaabf5c9b110e87f28d4e03d9515f6c87a"},
        diffs=_OUT_OF_BAND,
        remove_when=_HAS_OUT_OF_BAND,
    ),
    Patch(
        id="P15",
        target=f"{_MANAGERS}.scheduler_components.request_receiver.SchedulerRequestReceiver"
        "._pull_raw_reqs",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.scheduler_hooks:add_deadline_check",
        group=Group.SCHEDULER,
        why="Packed requests whose deadlines have passed would be computed all the same; ranks "
        "that look at their own clocks would drop different ones and wait for each other for ever.",
        signature="(self)",
        relies_on=("self.recv_from_tokenizer", "recv_reqs"),
        fingerprints={"0.5.23": "bd3c1529f9b5d17f71e10961b0266d47b8120029b07aca46ea3281cb78e2849b"},
        diffs=_PULLED,
        remove_when=_HAS_PULLED,
    ),
    Patch(
        id="P20",
        target=f"{_TOKENIZER_MANAGER}.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.frontend_hooks:attach_frontend",
        group=Group.FRONTEND,
        why="The tokenizer manager ends its process on a result type that it does not know.",
        signature="(self)",
        relies_on=("self._result_dispatcher", "TypeBasedDispatcher"),
        fingerprints={"0.5.23": "ac8dbd5bbea52dc74dd50e772a3cdce411590b16927038d83514b76c8ce3712b"},
        diffs=_MESSAGES,
        remove_when=_HAS_MESSAGES,
    ),
    Patch(
        id="P21",
        target=f"{_SCORE_MIXIN}.score_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.frontend_hooks:score_request",
        group=Group.FRONTEND,
        why="Every item of a scoring call would become a request of its own.",
        signature="(self, query=None, items=None, label_token_ids=None, apply_softmax=False, "
        "item_first=False, embed_override_token_id=None, query_embed_overrides=None, "
        "item_embed_overrides=None, stacked_query_item_embed_overrides=None, request=None, "
        "return_pooled_hidden_states=False, score_extraction_token_id=None, temperature=1.0, "
        "return_token_logprobs=False, image_data=None)",
        relies_on=("ScoreResult",),
        fingerprints={"0.5.23": "5c0df92bd53442bab5c91319dfbc9d08ef834625f4c412d0f3083433a1d5d25e"},
        diffs=_SCORE,
        remove_when=_HAS_SCORE,
    ),
    Patch(
        id="P22",
        target=f"{_TOKENIZER_MANAGER}._validate_one_request",
        kind=Kind.BEFORE,
        hook=f"{_HOOKS}.frontend_hooks:validate_prompt",
        group=Group.FRONTEND,
        why="One empty prompt, or one id outside the vocabulary, ends the scheduler process.",
        signature="(self, obj, input_ids)",
        relies_on=("obj.input_embeds", "input_ids"),
        fingerprints={"0.5.23": "9d3b5b9f071d4afca320fb72e49bdee29c98eb65700f3f65796392153ad38c29"},
        diffs=_PROMPTS,
        remove_when=_HAS_PROMPTS,
    ),
    Patch(
        id="P23",
        target=f"{_SERVING}.handle_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.http_errors:answer_errors",
        group=Group.FRONTEND,
        why="A rejected client would not learn when to come again: headers of errors are dropped.",
        signature="(self, request, raw_request)",
        relies_on=("HTTPException", "self.create_error_response"),
        fingerprints={"0.5.23": "fe9651c76ec2aff4c998b988a20a33e9b8204515a46553a1e712c7ca2c3597c3"},
        diffs=_ERRORS,
        remove_when=_HAS_ERRORS,
    ),
    Patch(
        id="P30",
        target=f"{_MANAGERS}.data_parallel_controller.DataParallelController.init_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.dp_hooks:route_packed",
        group=Group.DP_CONTROLLER,
        why="Messages of unknown type go to every replica: each would do the same packed work.",
        signature="(self)",
        relies_on=("self._request_dispatcher", "TypeBasedDispatcher", "self.send_control_message"),
        fingerprints={"0.5.23": "ded2b688c2b4edf97a91aa309ff0de0e208e950e0ecf5bb95cf10b7815f1bdda"},
        diffs=_MESSAGES,
        remove_when=_HAS_MESSAGES,
    ),
)
