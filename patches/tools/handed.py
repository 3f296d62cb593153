"""Uses that the border's source does not show: what hooks get from SGLang without an import.

These are listed by hand. `lock` finds everything else: what the border imports, classes whose
functions are patched, and which members of all these classes are read.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglang_prefill_ext.patching.spec import Group


def _sglang(names: str, package: str = "") -> tuple[str, ...]:
    return tuple(f"sglang.{package}{name}" for name in names.split())


_MODELS = _sglang(
    """
    arcee.ArceeModel
    commandr.CohereModel
    deepseek_common.attention_forward_methods.forward_mha.DeepseekMHAForwardMixin.forward_normal_prepare
    deepseek_v2.DeepseekV2AttentionMLA
    deepseek_v2.DeepseekV2Model
    ernie4.Ernie4Model
    exaone4.Exaone4Model
    falcon_h1.FalconH1Model
    gemma2.Gemma2Model
    gemma3_causal.Gemma3TextModel
    gemma4_causal.Gemma4TextModel
    glm4.Glm4Model
    glm4_moe.Glm4MoeModel
    glm4_moe_lite.Glm4MoeLiteModel
    gpt_oss.GptOssModel
    granite.GraniteModel
    granitemoe.GraniteMoeModel
    granitemoehybrid.GraniteMoeHybridModel
    lfm2.Lfm2Model
    lfm2_moe.Lfm2MoeModel
    llama.LlamaModel
    ministral3.Ministral3Model
    mixtral.MixtralModel
    nemotron_h.NemotronHModel
    olmo.OlmoModel
    olmo2.Olmo2Model
    olmoe.OlmoeModel
    qwen2.Qwen2Model
    qwen2_moe.Qwen2MoeModel
    qwen3.Qwen3Model
    qwen3_5.Qwen3_5ForCausalLM
    qwen3_moe.Qwen3MoeModel
    qwen3_next.Qwen3NextModel
    qwen3_vl.Qwen3LLMModel
    qwen3_vl_moe.Qwen3MoeLLMModel
    stablelm.StableLMEpochModel
    starcoder2.Starcoder2Model
    gemma3_mm.Gemma3ForConditionalGeneration
    gemma4_mm.Gemma4ForConditionalGeneration
    qwen3_5.Qwen3_5ForConditionalGeneration
    glm4v.Glm4vForConditionalGeneration
    glm4v_moe.Glm4vMoeForConditionalGeneration
    mistral.Mistral3ForConditionalGeneration
    transformers.TransformersBase
    bert.BertForSequenceClassification
    bert.BertModel
    bert.BertPooler
    gemma2_reward.Gemma2ForSequenceClassification
    llama.LlamaForCausalLM
    llama_embedding.LlamaEmbeddingModel
    llama_reward.LlamaForSequenceClassification
    qwen2.Qwen2ForCausalLM
    qwen2_vl.Qwen2VLForConditionalGeneration
    qwen2_5_vl.Qwen2_5_VLForConditionalGeneration
    qwen2_classification.Qwen2ForSequenceClassification
    qwen2_rm.Qwen2ForRewardModel
    qwen3.Qwen3ForCausalLM
    qwen3_classification.Qwen3ForSequenceClassification
    qwen3_embedding.Qwen3Model
    qwen3_rm.Qwen3ForRewardModel
    qwen3_vl.Qwen3VLForConditionalGeneration
    qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration
    roberta.RobertaClassificationHead
    roberta.RobertaEmbedding
    roberta.XLMRobertaBaseModel
    roberta.XLMRobertaForSequenceClassification
    roberta.XLMRobertaModel
    """,
    "srt.models.",
)
"""Models whose layers packed forwards run; then those that contain such; from `bert` on, classes
with pooling or heads, and parts of encoders."""

_SCHEDULER = _sglang("""
    srt.configs.model_config.ModelConfig
    srt.layers.layer_boundary.residual.stream.ResidualStream
    srt.layers.logits_processor.LogitsProcessor
    srt.layers.pooler.EmbeddingPoolerOutput
    srt.layers.pooler.score_and_pool
    srt.layers.sampler.Sampler
    srt.layers.vocab_parallel_embedding.VocabParallelEmbedding
    srt.layers.vocab_parallel_embedding.VocabParallelEmbeddingShardIndices
    srt.lora.backend.base_backend.BaseLoRABackend
    srt.managers.schedule_batch.NextBatchPlan
    srt.managers.scheduler_components.ipc_channels.SchedulerIpcChannels
    srt.managers.scheduler_components.output_sender.SenderWrapper
    srt.managers.scheduler_components.profiler_manager.SchedulerProfilerManager
    srt.managers.tp_worker.TpModelWorker
    srt.mem_cache.allocator.BaseTokenToKVPoolAllocator
    srt.mem_cache.base_prefix_cache.BasePrefixCache
    srt.mem_cache.base_prefix_cache.MatchResult
    srt.mem_cache.memory_pool.ReqToTokenPool
    srt.model_executor.model_runner.ModelRunner
    srt.model_executor.model_runner.ModelRunnerOutput
    srt.observability.metrics_collector.SchedulerMetricsCollector
    srt.observability.metrics_collector.SchedulerMetricsCollectorContext
    srt.runtime_context.SpawnRanks
    srt.runtime_context._ConfigBag
    utils.TypeBasedDispatcher
""")
HANDED: Mapping[Group, tuple[str, ...]] = {
    Group.SCHEDULER: (*_SCHEDULER, *_MODELS),
    Group.FRONTEND: _sglang("""
    srt.configs.model_config.ModelConfig
    srt.entrypoints.http_server.serve_generate_request
    srt.lora.lora_registry.LoRARegistry
    srt.observability.metrics_collector.TokenizerMetricsCollector
    srt.observability.request_metrics_exporter.RequestMetricsExporterManager
    srt.parser.template_manager.TemplateManager
    srt.runtime_context.num_dp_ranks_of
    srt.utils.aio_rwlock.RWLock
    srt.utils.request_logger.RequestLogger
    utils.TypeBasedDispatcher
"""),
    Group.DP_CONTROLLER: _sglang("""
    srt.managers.data_parallel_controller.DPBudget
    srt.managers.load_snapshot.LoadSnapshot
    utils.TypeBasedDispatcher
"""),
}
"""Group -> functions that SGLang passes to its hooks, and classes of the objects it passes."""

READ_ELSEWHERE = frozenset(
    _sglang("""
    srt.managers.data_parallel_controller.DPBudget
    srt.managers.embed_types.PositionalEmbeds
    srt.managers.io_struct.BatchStrOutput
    srt.managers.io_struct.EmbeddingReqInput
    srt.managers.io_struct.GenerateReqInput
    srt.managers.io_struct.TokenizedGenerateReqInput
    srt.managers.load_snapshot.LoadSnapshot
    srt.sampling.sampling_params.SamplingParams
""")
)
"""Classes whose objects the border passes on: other modules of ours read or replace them."""
