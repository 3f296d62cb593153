"""What is changed in SGLang for garbage collection, several schedulers on one device, adapters and
the layers of models; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_GC_CONTROL = "sglang_prefill_ext.border.gc_control"
_PAGEABLE_HOOK = "sglang_prefill_ext.border.cpu.cpu_platform:without_pinning"
_REPLICA_HOOKS = "sglang_prefill_ext.border.dp_controller.several_schedulers"

_MANAGERS = "sglang.srt.managers"
_CONTROLLER = f"{_MANAGERS}.data_parallel_controller.DataParallelController"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_LORA = "sglang.srt.lora"
_PROCESSOR = "sglang.srt.layers.logits_processor"

_ROUND = ("0021-control-messages-to-every-process.patch",)
_REPLICAS = ("0020-several-replicas-on-a-gpu.patch",)
_PAGEABLE = ("0019-lora-without-pinned-memory.patch",)

PROCESS_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P43",
        target=f"{_MANAGERS}.tokenizer_manager.TokenizerManager.freeze_gc",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.tokenizer_manager.server_setup:freeze_gc",
        group=Group.FRONTEND,
        why="Garbage of the start would be frozen too. The tokenizer router and attached front "
        "ends would not freeze.",
        signature="(self)",
        relies_on="FreezeGCReq gc_threshold self._dispatch_to_scheduler",
        fingerprints={"0.5.23": "9f24041e08cc0edc03ccc8d0708d5f7b9237c0ca5a7a07171ffa2387c4c32fd1"},
        diffs=_ROUND,
    ),
    Patch(
        id="P44",
        target=f"{_MANAGERS}.detokenizer_manager.DetokenizerManager.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_GC_CONTROL}:attach_detokenizer",
        group=Group.DETOKENIZER,
        why="Detokenizers would freeze, but neither collect before, nor unfreeze, nor report.",
        signature="(self)",
        relies_on="self._request_dispatcher TypeBasedDispatcher FreezeGCReq",
        fingerprints={"0.5.23": "8781d795e443e1fe30818ba897ad60746babce895ae89a18f4fcf1a66f76218c"},
        diffs=_ROUND,
    ),
    Patch(
        id="P45",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter"
        "._distribute_result_to_workers",
        kind=Kind.AROUND,
        hook=f"{_GC_CONTROL}:spread_to_workers",
        group=Group.FRONTEND,
        why="With several tokenizer workers only the one that was asked would act.",
        signature="(self, recv_obj)",
        relies_on="BaseReq self.socket_mapping.send_output",
        fingerprints={"0.5.23": "fb024dcc680d95ff8ee0ec3932f3fc972fb646612ae1262f5abcf9ff978cdb3d"},
        diffs=_ROUND,
    ),
    Patch(
        id="P46",
        target=f"{_CONTROLLER}.launch_tensor_parallel_group",
        kind=Kind.AROUND,
        hook=f"{_REPLICA_HOOKS}:start_in_turn",
        group=Group.DP_CONTROLLER,
        why="--prefill-only-schedulers would start each scheduler on a GPU of its own, and all "
        "at once, without knowing the memory of the others.",
        signature="(self, server_args, port_args, base_gpu_id, dp_rank, worker_ports=None)",
        relies_on="base_gpu_id mp.Process self._record_scheduler_init_infos",
        fingerprints={"0.5.23": "287dacd5e3f0b7ba2f510e5d9f7143223a9cdc8d768ab8c83e77aed65523c0ed"},
        diffs=_REPLICAS,
    ),
    Patch(
        id="P47",
        target=f"{_CONFIGURATOR}._profile_available_bytes",
        kind=Kind.AFTER,
        hook=f"{_REPLICA_HOOKS}:share_room",
        group=Group.SCHEDULER,
        why="The first of several schedulers on a device would take all memory for K/V.",
        signature="(self, pre_model_load_memory)",
        relies_on="available_gpu_memory rest_memory pre_model_load_memory get_schedule",
        fingerprints={"0.5.23": "c38fae5381899c9f5fd2e30e92ec71258699a0d9fc7ceba4a6e5fa52e5cb7d73"},
        diffs=_REPLICAS,
    ),
    Patch(
        id="P50",
        target=f"{_LORA}.lora_manager.LoRAManager.init_state",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="Without a CUDA device no memory is pinned, and a server with LoRA would not start.",
        signature="(self, max_lora_rank=None, target_modules=None, lora_paths=None)",
        relies_on="self.init_lora_modules self.update_lora_info",
        fingerprints={"0.5.23": "ce3be55bab9dc433e2bfd554b8591def85bae58b9cb50ad48dc3a917159bfaba"},
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P51",
        target=f"{_LORA}.backend.torch_backend.TorchNativeLoRABackend.prepare_lora_batch",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="Likewise for every batch of such a server.",
        signature="(self, forward_batch, weight_indices, lora_ranks, scalings, use_cuda_graph, "
        "use_prefill_cuda_graph=False)",
        relies_on="torch.tensor self.batch_info",
        fingerprints={"0.5.23": "eb509e0501107fea465972e7ca2fcfefe52cb7634b566dbfb50bea30d4379941"},
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P54",
        target=f"{_PROCESSOR}.LogitsProcessor._get_logits",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.cpu_platform:capped_on_host",
        group=Group.CPU,
        why="Without a GPU a model with a soft cap of its logits would answer nothing.",
        signature="(self, hidden_states, lm_head, logits_metadata, embedding_bias=None, "
        "use_logits_buffer=True)",
        relies_on="self.final_logit_softcapping",
        fingerprints={"0.5.23": "f8e18998b53a8344ef2efcfc60d96abfac0434b2857952c801ef6d0d95e417ef"},
        diffs=("0024-soft-cap-of-logits-on-the-cpu.patch",),
    ),
)
