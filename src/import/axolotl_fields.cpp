// What becomes of axolotl's fields that stand for themselves; axolotl.cpp has those that depend on each other.
#include "import/axolotl_fields.h"

namespace unsloth::import {
namespace {

using Values = std::vector<Json>;
const Values nothing = {nullptr, false};

void add_kernels(PeerRows& rows) {
    rows.any({"flash_attention",
              "flash_attn_cross_entropy",
              "flash_attn_rms_norm",
              "flash_attn_fuse_mlp",
              "flash_optimum",
              "sdp_attention",
              "xformers_attention",
              "flex_attention",
              "flex_attn_compile_kwargs",
              "sage_attention",
              "eager_attention",
              "attn_implementation",
              "gemma4_hybrid_attn_impl",
              "large_head_attention",
              "flash_attn_d512",
              "sdpa_varlen",
              "fused_attn_kernel",
              "lora_mlp_kernel",
              "lora_qkv_kernel",
              "lora_o_kernel",
              "lora_embedding_kernel",
              "chunked_cross_entropy",
              "chunked_cross_entropy_num_chunks",
              "tiled_mlp",
              "tiled_mlp_num_shards",
              "tiled_mlp_use_original_mlp",
              "torch_compile",
              "torch_compile_backend",
              "torch_compile_mode",
              "torch_compile_options",
              "deepcompile",
              "tf32",
              "cut_cross_entropy",
              "liger_rope",
              "liger_rms_norm",
              "liger_rms_norm_gated",
              "liger_layer_norm",
              "liger_swiglu",
              "liger_glu_activation",
              "liger_cross_entropy",
              "liger_fused_linear_cross_entropy",
              "liger_use_token_scaling",
              "liger_kernel_impl",
              "expert_backend",
              "experts_implementation",
              "moe_grouped_backend",
              "moe_dequant_chunk_size",
              "moe_bnb_fast",
              "use_scattermoe",
              "use_sonicmoe",
              "use_dsv4_kernels",
              "use_glm_dsa_kernels",
              "dsv4_fp8_lora_kernel",
              "dsv4_shared_mlp_lora_kernel",
              "torch_empty_cache_steps",
              "gc_steps",
              "gc_collect_steps",
              "torchdistx_path"},
             "kernels are compiled into the program and chosen by the card, with the same results");
}

void add_model(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("base_model", "model.path", {}, {nullptr})
        .means("resume_from_checkpoint", "training.resume_from_checkpoint", {}, {nullptr, false, ""})
        .means("auto_resume_from_checkpoints", "training.resume_from_checkpoint", {{true, "auto"}}, nothing,
               "true or false is expected")
        .any({"base_model_config", "tokenizer_use_fast", "tokenizer_legacy", "tokenizer_save_jinja_files",
              "trust_remote_code", "model_type", "type_of_model", "tokenizer_type", "is_falcon_derived_model",
              "is_llama_derived_model", "is_mistral_derived_model", "is_qwen_derived_model", "low_cpu_mem_usage",
              "experimental_skip_move_to_device", "hf_use_auth_token", "use_kernels", "embeddings_skip_upcast",
              "lora_on_cpu", "qlora_sharded_model_loading"},
             "config.json and tokenizer.json say what the folder holds, and no code of a repository is run")
        .only({"gptq", "gptq_groupsize", "gptq_model_v1", "use_onebitllms", "nonexpert_quantization",
               "dsv4_fp8_nonexpert_mode", "dsv4_bf16_all", "dsv4_fp4_grouped_mode", "gemma4_fp8_nonexpert",
               "gemma4_nf4_nonexpert", "nvfp4_merge_aware", "nvfp4_merge_aware_start_step", "qat", "quantization"},
              off, "model.load_in_4bit, load_in_8bit and precision say what the base is held in")
        .only({"fp8", "fp8_config", "fp8_enable_fsdp_float8_all_gather"}, off,
              "model.compute_dtype int8 and fp8_both compute the base's products in 8 bit, with other scales than "
              "axolotl's")
        .only({"bnb_config_kwargs"}, off, "model.load_in_4bit makes NF4 with quantised scales")
        .means("rope_scaling", "model.rope_scaling", {}, {nullptr})
        .only({"overrides_of_model_config", "model_config", "overrides_of_model_kwargs", "model_kwargs",
               "scaling_softmax", "scaling_softmax_factor", "scaling_softmax_bias"},
              off, "the model's own config.json is taken as it is; write it there")
        .only({"tokenizer_config"}, off, "the tokenizer is in the model's folder; put the other one's files there")
        .only({"tokenizer_use_mistral_common"}, nothing, "tokenizer.json or tokenizer.model is read")
        .only({"revision_of_model", "model_revision"}, {nullptr, "main"},
              "model.path ORG/NAME@REVISION names one of the hub")
        .only({"cls_model_config", "num_labels", "trainer_cls"}, off, "causal language models alone are trained")
        .only({"reinit_weights"}, nothing, "init writes a model with random weights to train from")
        .any({"test_value", "torch_dtype"}, "no part of axolotl reads it")
        .only({"mean_resizing_embeddings", "shrink_embeddings", "tokens", "added_tokens_overrides",
               "fix_untrained_tokens"},
              off, "the vocabulary is the model folder's; add tokens there first")
        .only({"processor_kwargs", "image_size", "image_resize_algorithm", "role_boundaries"}, off,
              "images are resized as the model's preprocessor_config.json says, and the template says whose turn it is")
        .only({"llama4_linearized_experts", "ple_cpu_offload"}, nothing, "this kind of model is not trained")
        .only({"fp32_norms", "fp32_norm_classes"}, off, "norms are of model.dtype and compute in float32")
        .means("device", "hardware.device", {}, {nullptr, "auto"})
        .means("device_map", "model.device_map", {}, {nullptr})
        .means("max_memory", "model.max_memory", {}, {nullptr})
        .any({"gpu_memory_limit"}, "the memory plan says before the first step what is needed");
}

void add_adapter(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("lora_model_dir", "model.adapter_name_or_path", {}, {nullptr, ""})
        .means("lora_r", "lora.r", {}, {nullptr})
        .means("lora_alpha", "lora.lora_alpha", {}, {nullptr})
        .means("lora_dropout", "lora.lora_dropout", {}, {nullptr})
        .means("lora_rank_pattern", "lora.rank_pattern", {}, {nullptr})
        .means("lora_alpha_pattern", "lora.alpha_pattern", {}, {nullptr})
        .means("peft_layers_to_transform", "lora.layers_to_transform", {}, {nullptr})
        .means("peft_use_rslora", "lora.use_rslora", {}, {nullptr})
        .means("peft_use_dora", "lora.use_dora", {}, {nullptr})
        .only({"peft_init_lora_weights"}, {nullptr, true}, "A is drawn uniformly and B is 0, as PEFT does for true")
        .only({"lora_fan_in_fan_out", "peft_ensure_weight_tying"}, nothing, "adapters are plain linear layers, untied")
        .only({"peft_layers_pattern", "peft_layer_replication", "peft_trainable_token_indices"}, off,
              "lora.target_modules and lora.layers_to_transform say which modules are trained")
        .means("lora_target_parameters", "lora.target_parameters", {}, {nullptr})
        .only({"peft"}, off, "adapters begin at zero, not at the quantisation error (LoftQ)")
        .any({"peft_autocast_adapter_dtype"}, "adapters are kept in float32")
        .means("loraplus_lr_ratio", "lora.loraplus_lr_ratio", {}, {nullptr})
        .any({"loraplus_lr_embedding"}, "it is of adapters of embeddings, which there are none of")
        .any({"merge_lora", "merge_method"}, "unsloth-train merge does it after the run")
        .only({"relora", "relora_cpu_offload", "jagged_restart_steps", "jagged_restart_warmup_steps",
               "jagged_restart_anneal_steps"},
              off, "an adapter is trained to the end; merge it and train another one")
        .any({"relora_prune_ratio", "relora_prune_method"}, "it applies to relora")
        .only(
            {"use_mora", "mora", "mora_type", "lisa_n_layers", "lisa_step_interval", "spectrum_top_fraction",
             "spectrum_model_name", "dense_mixer", "hatchery", "lora_rank", "train_attn", "train_mlp", "train_unembed"},
            off, "LoRA and full fine-tuning are there, this way is not")
        .any({"lisa_layers_attribute"}, "it applies to lisa_n_layers");
}

void add_data(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("val_set_size", "data.val_size", {}, {nullptr, 0})
        .means("train_on_inputs", "data.train_on_prompt", {}, {nullptr})
        .means("shuffle_merged_datasets", "data.shuffle", {}, {nullptr})
        .means("chat_template_kwargs", "data.chat_template_kwargs", {}, {nullptr})
        .means("excess_length_strategy", "data.overflow_strategy", {{"drop", "drop"}, {"truncate", "truncate"}},
               {nullptr}, "data.overflow_strategy truncates, splits or drops; data counts such rows before a run")
        .any({"shuffle_before_merging_datasets",
              "dataset_prepared_path",
              "dataset_processes",
              "dataset_num_proc",
              "dataset_keep_in_memory",
              "skip_prepare_dataset",
              "num_dataset_shards_to_save",
              "is_preprocess",
              "preprocess_iterable",
              "dataloader_pin_memory",
              "dataloader_num_workers",
              "dataloader_prefetch_factor",
              "accelerator_config",
              "remove_unused_columns",
              "total_num_tokens",
              "total_supervised_tokens",
              "axolotl_config_path",
              "streaming",
              "streaming_multipack_buffer_size",
              "strict"},
             "rows are encoded once, by all cores, into a cache (data.cache_dir)")
        .any({"dataloader_drop_last"}, "batches go down to an epoch's last, smaller one")
        .any({"sample_packing_group_size", "sample_packing_bin_size", "sample_packing_sequentially",
              "sample_packing_mp_start_method", "sample_packing_eff_est", "eval_sample_packing", "batch_flattening",
              "multipack_real_batches", "pretrain_multipack_buffer_size", "pretrain_multipack_attn",
              "pretraining_sample_concatenation"},
             "data.packing fills rows with whole examples, each attending only to itself")
        .any({"pad_to_sequence_len", "pad_to_multiple_of", "group_by_length"}, "rows are not padded")
        .means("dataset_exact_deduplication", "data.drop_duplicates", {}, {nullptr})
        .only({"dataset_shard_num", "dataset_shard_idx"}, off, "a run reads all rows; split the file")
        .aside({"push_dataset_to_hub"}, "nothing is uploaded")
        .means("min_sample_len", "data.min_length", {}, {nullptr, false})
        .only({"max_prompt_len"}, off, "rows are dropped by their whole length")
        .only({"eval_sequence_len"}, {nullptr}, "evaluation rows are cut at model.max_seq_length too")
        .only({"use_pose", "pose_split_on_token_ids", "pose_max_context_len", "pose_num_chunks"}, off,
              "positions are 0, 1, 2, …, or what a tokenised row says (position_ids)")
        .only({"default_system_message"}, off, "a row's own system text is taken; put one into the rows");
}

void add_optimizer(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("micro_batch_size", "training.per_device_train_batch_size", {}, {nullptr})
        .means("gradient_accumulation_steps", "training.gradient_accumulation_steps", {}, {nullptr})
        .means("num_epochs", "training.num_train_epochs", {}, {nullptr})
        .means("max_steps", "training.max_steps", {}, {nullptr})
        .means("learning_rate", "training.learning_rate", {}, {nullptr})
        .means("weight_decay", "training.weight_decay", {}, {nullptr})
        .means("lr_scheduler_kwargs", "training.lr_scheduler_kwargs", {}, {nullptr})
        .means("adam_beta1", "training.adam_beta1", {}, {nullptr})
        .means("adam_beta2", "training.adam_beta2", {}, {nullptr})
        .means("adam_epsilon", "training.adam_epsilon", {}, {nullptr})
        .means("max_grad_norm", "training.max_grad_norm", {}, {nullptr})
        .means("seed", "training.seed", {}, {nullptr})
        .means("sequence_len", "model.max_seq_length", {}, {nullptr})
        .any({"eval_batch_size"}, "evaluation batches hold as many tokens as training's")
        .only({"batch_size"}, {nullptr}, "training.gradient_accumulation_steps and per_device_train_batch_size say it")
        .only({"auto_find_batch_size"}, nothing, "the memory plan says before the first step whether a batch fits")
        .only({"embedding_lr", "embedding_lr_scale", "lr_groups", "optim_target_modules"}, off,
              "all that is trained has one learning rate")
        .any({"eta_min"}, "no part of axolotl reads it: cosine_min_lr_ratio does what its name says")
        .only({"lr_quadratic_warmup", "cosine_constant_lr_ratio", "lr_div_factor"}, {nullptr, false, 0},
              "training.lr_scheduler_type has transformers' courses")
        .only({"optim_args", "adam_beta3", "adam_epsilon2", "dion_lr", "dion_momentum", "grokfast_alpha",
               "grokfast_lamb"},
              off, "training.optim is AdamW, with adam_beta1, adam_beta2, adam_epsilon")
        .any({"dion_rank_fraction", "dion_rank_multiple_of", "qgalore_rank", "qgalore_update_proj_gap", "qgalore_scale",
              "qgalore_proj_type", "qgalore_proj_quant", "qgalore_proj_bits", "qgalore_proj_group_size",
              "qgalore_cos_threshold", "qgalore_gamma_proj", "qgalore_queue_size"},
             "it applies to another optimizer")
        .means("neftune_noise_alpha", "training.neftune_noise_alpha", {}, {nullptr})
        .means("noisy_embedding_alpha", "training.neftune_noise_alpha", {}, {nullptr})
        .only({"use_eaft"}, nothing, "the loss is the plain cross-entropy")
        .any({"eaft_alpha", "eaft_k"}, "it applies to use_eaft")
        .only({"max_packed_sequence_len"}, {nullptr}, "sequence_len and sample_packing say it, in axolotl too")
        .only({"s2_attention"}, nothing, "attention is the model's own, in axolotl too")
        .any({"gradient_checkpointing_kwargs"}, "training.gradient_checkpointing says what is computed again")
        .only({"selective_checkpointing"}, off,
              "training.gradient_checkpointing mlp and attention keep a part; auto takes what fits")
        .means("activation_offloading", "training.gradient_checkpointing",
               {{true, "full+offload"}, {"legacy", "full+offload"}, {"hidden_states", "full+offload"}}, nothing,
               "what a layer keeps goes to host memory (full+offload), not to a disk")
        .only({"layer_offloading"}, nothing, "model.device_map says which layers' weights are in host memory");
}

void add_reports(PeerRows& rows) {
    rows.means("output_dir", "training.output_dir", {}, {nullptr})
        .means("use_tensorboard", "training.report_to", {{true, {"tensorboard"}}}, nothing, "true or false is expected")
        .means("save_total_limit", "training.save_total_limit", {}, {nullptr})
        .means("logging_steps", "training.logging_steps", {}, {nullptr})
        .any({"use_wandb",
              "wandb_name",
              "wandb_run_id",
              "wandb_mode",
              "wandb_project",
              "wandb_entity",
              "wandb_watch",
              "wandb_log_model",
              "use_mlflow",
              "mlflow_tracking_uri",
              "mlflow_experiment_name",
              "mlflow_run_name",
              "hf_mlflow_log_artifacts",
              "use_comet",
              "comet_api_key",
              "comet_workspace",
              "comet_project_name",
              "comet_experiment_key",
              "comet_mode",
              "comet_online",
              "comet_experiment_config",
              "use_trackio",
              "trackio_project_name",
              "trackio_run_name",
              "trackio_space_id",
              "use_otel_metrics",
              "otel_metrics_host",
              "otel_metrics_port",
              "use_swanlab",
              "swanlab_project",
              "swanlab_experiment_name",
              "swanlab_description",
              "swanlab_mode",
              "swanlab_workspace",
              "swanlab_api_key",
              "swanlab_log_model",
              "swanlab_web_host",
              "swanlab_api_host",
              "swanlab_lark_webhook_url",
              "swanlab_lark_secret",
              "swanlab_log_completions",
              "swanlab_completion_log_interval",
              "swanlab_completion_max_buffer"},
             "training.report_to sends metrics to tensorboard, prometheus, html and wandb, and logging.metrics_file "
             "has them")
        .any({"include_tokens_per_second", "include_tkps", "save_safetensors", "save_only_model", "eval_table_size",
              "eval_max_new_tokens", "gradio_title", "gradio_share", "gradio_server_name", "gradio_server_port",
              "gradio_max_new_tokens", "gradio_temperature", "debug"},
             "the metrics hold losses, tokens and rates; checkpoints are safetensors files with the optimizer's state")
        .any({"profiler_steps_start"}, "it applies to profiler_steps")
        .aside({"profiler_steps"}, "logging.profile traces the third step")
        .aside({"hub_revision"}, "training.push_to_hub uploads to main")
        .aside({"save_first_step"}, "checkpoints come every training.save_steps steps")
        .means("metric_for_best_model", "training.metric_for_best_model", {}, {nullptr, ""})
        .means("greater_is_better", "training.greater_is_better", {}, {nullptr})
        .aside({"loss_watchdog_threshold", "loss_watchdog_patience"},
               "a loss that is not finite stops a run, and one that rises tenfold is reported")
        .aside({"do_causal_lm_eval", "eval_causal_lm_metrics", "do_bench_eval", "bench_dataset", "bench_split",
                "lm_eval_tasks", "lm_eval_batch_size", "lm_eval_post_train", "lm_eval_model"},
               "the loss over the labels is what is evaluated")
        .aside({"generate_samples"}, "training.sample_prompts names a file of prompts that each evaluation answers")
        .any({"num_generation_samples", "generation_max_new_tokens", "generation_temperature", "generation_top_p",
              "generation_top_k", "generation_prompt_ratio", "generation_do_sample"},
             "it applies to generate_samples")
        .aside({"dynamic_checkpoint"}, "SIGTERM saves a checkpoint at any time");
}

void add_other_trainings(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.only({"trl",
               "vllm",
               "ebft",
               "reward_model",
               "process_reward_model",
               "center_rewards_coefficient",
               "dpo_use_weighting",
               "dpo_loss_weights",
               "dpo_generate_during_eval",
               "dpo_norm_loss",
               "kd_trainer",
               "kd_ce_alpha",
               "kd_alpha",
               "kd_temperature",
               "kd_beta",
               "kd_normalize_topk",
               "kd_online_server_base_url",
               "kd_online_topk",
               "kd_online_server",
               "kd_online_timeout",
               "kd_temperature_min",
               "diffusion",
               "noise_schedule",
               "min_mask_ratio",
               "max_mask_ratio",
               "num_diffusion_steps",
               "eps",
               "importance_weighting",
               "mask_token_id",
               "mask_token_str",
               "generation_interval",
               "generation_steps",
               "generation_max_length",
               "nemo_gym_enabled",
               "nemo_gym_dir",
               "nemo_gym_auto_clone",
               "nemo_gym_config_paths",
               "nemo_gym_head_port",
               "nemo_gym_server_timeout",
               "nemo_gym_verify_timeout",
               "nemo_gym_run_timeout",
               "nemo_gym_datasets",
               "nemo_gym_auto_start",
               "nemo_gym_model_name",
               "nemo_gym_multi_turn",
               "nemo_gym_max_turns",
               "backend",
               "base_url",
               "api_key",
               "project_id",
               "loss_fn",
               "loss_fn_config",
               "pipeline",
               "max_sample_tokens",
               "sample_temperature",
               "num_samples",
               "reward_funcs",
               "save_name_prefix",
               "future_timeout"},
              off, "training.objective defines the loss; this is not part of it");
}

void add_preferences_and_ranks(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.only({"dpo_beta"}, off, "rl_beta is preference.beta")
        .any({"precompute_ref_log_probs"}, "the reference's log-probabilities are made once, before the first step")
        .any({"dpo_use_liger_kernel", "dpo_padding_free", "dpo_use_logits_to_keep"},
             "rows are not padded, and logits are made of targets alone, some rows at a time")
        .only({"recipe", "save_compressed", "llmcompressor"}, off, "unsloth-train quantize makes 4 and 8-bit models")
        .aside({"expert_parallel_size"}, "distributed.tp_size and zero_stage say what ranks share", {nullptr, 1})
        .aside({"heads_k_stride", "ring_attn_func", "expert_parallel_backend", "expert_parallel_num_nvl_bytes",
                "expert_parallel_num_rdma_bytes", "expert_parallel_token_capacity",
                "expert_parallel_fallback_on_unsupported"},
               PeerRows::ranks_share)
        .means("tensor_parallel_size", "distributed.tp_size", {}, {nullptr})
        .means("context_parallel_size", "distributed.cp_size", {}, {nullptr})
        .means("sequence_parallel_degree", "distributed.cp_size", {}, {nullptr})
        .means("ddp_timeout", "distributed.ddp_timeout", {}, {nullptr})
        .means("ddp_bucket_cap_mb", "distributed.ddp_bucket_cap_mb", {}, {nullptr})
        .any({"ddp_broadcast_buffers", "ddp_find_unused_parameters", "ddp", "world_size", "local_rank",
              "dp_replicate_size", "use_ray", "ray_run_name", "ray_num_workers", "resources_per_worker"},
             "unsloth-train launch, torchrun or srun say how many processes there are");
}

}  // namespace

const std::vector<PeerField>& axolotl_fields() {
    static const std::vector<PeerField> table = [] {
        PeerRows rows;
        add_kernels(rows);
        add_model(rows);
        add_adapter(rows);
        add_data(rows);
        add_optimizer(rows);
        add_reports(rows);
        add_other_trainings(rows);
        add_preferences_and_ranks(rows);
        return rows.take();
    }();
    return table;
}

}  // namespace unsloth::import
