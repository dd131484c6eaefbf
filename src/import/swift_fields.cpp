#include "import/swift_fields.h"

namespace unsloth::import {
namespace {

const std::vector<Json>& unset = PeerRows::off;

void add_swift_model_fields(PeerRows& rows) {
    rows.any({"model_type", "model_meta", "model_info", "model_dir", "model_suffix", "template_meta"},
             "config.json and the tokenizer's files say what the model is")
        .only({"model_revision"}, {nullptr, "", "main", "master"},
              "model.path ORG/NAME@REVISION names a revision of the Hugging Face Hub")
        .only({"task_type"}, {nullptr, "causal_lm"}, "causal language models alone are trained")
        .only({"num_labels", "problem_type"}, unset, "causal language models alone are trained")
        .any({"attn_impl", "experts_impl", "enable_npu_model_patch", "tuner_backend", "use_swift_lora"},
             "kernels are compiled into the program")
        .any({"use_hf", "local_repo_path", "download_mode", "hub"}, "a hub's files come from the Hugging Face Hub")
        .only({"new_special_tokens"}, unset, "the tokenizer's files have all tokens")
        .only({"max_model_len"}, {nullptr}, "model.rope_scaling says how positions are scaled")
        .only({"init_strategy"}, unset, "all weights come from the checkpoint")
        .only({"model_kwargs"}, unset, "section model has the options of loading")
        .only({"device_map"}, {nullptr, "", "auto"}, "model.device_map says where parts of the model are")
        .only({"max_memory"}, unset, "model.max_memory takes {\"0\": \"12GiB\", \"cpu\": \"64GiB\"}")
        .only({"hqq_axis"}, {nullptr}, "model.load_in_4bit makes NF4");
}

void add_swift_adapter_fields(PeerRows& rows) {
    rows.means("lora_rank", "lora.r", {}, {nullptr})
        .means("lorap_lr_ratio", "lora.loraplus_lr_ratio", {}, {nullptr})
        .only({"lora_bias"}, {nullptr, "none"}, "biases are not trained with adapters")
        .any({"lora_dtype"}, "adapters are trained in float32")
        .only({"init_weights"}, {nullptr, true, "true", "True"}, "A is drawn uniformly, and B is 0 at the start")
        .only({"target_parameters"}, unset, "lora.target_modules says what gets adapters")
        .only({"freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters",
               "trainable_parameters_regex"},
              {nullptr, "", 0, Json::array()},
              "lora.target_modules and lora.layers_to_transform select the trained modules")
        .any({"freeze_llm", "freeze_vit", "freeze_aligner", "vit_gradient_checkpointing", "max_pixels", "norm_bbox"},
             "rows are texts, without images or sounds")
        .only({"vit_lr", "aligner_lr"}, {nullptr}, "rows are texts, without images or sounds")
        .any({"lora_ga_batch_size",
              "lora_ga_iters",
              "lora_ga_max_length",
              "lora_ga_direction",
              "lora_ga_scale",
              "lora_ga_stable_gamma",
              "fourier_n_frequency",
              "fourier_scaling",
              "boft_block_size",
              "boft_block_num",
              "boft_n_butterfly_factor",
              "boft_dropout",
              "vera_rank",
              "vera_projection_prng_key",
              "vera_dropout",
              "vera_d_initial",
              "adapter_act",
              "adapter_length",
              "adalora_target_r",
              "adalora_init_r",
              "adalora_tinit",
              "adalora_tfinal",
              "adalora_deltaT",
              "adalora_beta1",
              "adalora_beta2",
              "adalora_orth_reg_weight",
              "llamapro_num_new_blocks",
              "llamapro_num_groups",
              "reft_layer_key",
              "reft_layers",
              "reft_rank",
              "reft_intervention_type",
              "reft_args"},
             "it is for another tuner_type or init_weights");
}

void add_swift_data_fields(PeerRows& rows) {
    rows.any({"val_dataset_shuffle", "load_from_cache_file", "lazy_tokenize", "streaming", "shuffle_buffer_size",
              "packing_num_proc", "disable_auto_column_mapping", "load_data_args", "padding_side"},
             "rows are read as they come, into a cache, and are not padded")
        .any({"stopping_strategy"}, "weights of data.datasets are shares of an epoch")
        .only({"packing_strategy"}, {nullptr, "binpack"}, "packing puts whole rows together, in the order that fits")
        .only({"cached_dataset", "cached_val_dataset"}, unset, "encoded rows of ms-swift are not read: name the rows")
        .only({"custom_dataset_info"}, unset, "data.datasets names files, with their columns")
        .only({"model_name", "model_author"}, unset, "texts of rows are taken as they are: write the name into them")
        .only({"decision_drop_instructions", "decision_subsample_options", "decision_state_as_text",
               "decision_shuffle_fields"},
              {nullptr, 0, false}, "rows are learned as they are")
        .any({"agent_template", "template_backend"}, "the chat template writes tools")
        .only({"use_chat_template"}, {nullptr, true}, "data.format text reads rows {text} without a chat template")
        .only({"response_prefix"}, unset, "the chat template writes what answers begin with")
        .only({"preserve_thinking"}, {nullptr, false}, "data.chat_template_kwargs has the template's variables")
        .any({"add_non_thinking_prefix", "disable_ignore_empty_think", "is_binary_loss_scale"},
             "the chat template says what a row's text is, and only answers are trained");
}

void add_swift_training_fields(PeerRows& rows) {
    rows.only({"enable_dft_loss"}, unset, "the loss is the plain cross-entropy")
        .any({"enable_channel_loss", "acc_strategy", "use_logits_to_keep"},
             "the loss and the accuracy are over all targets; data.eval_files gives each set its own")
        .any({"safe_serialization", "max_shard_size", "create_checkpoint_symlink", "add_version", "use_flash_ckpt"},
             "a checkpoint is safetensors files, in training.output_dir")
        .any({"check_model", "ignore_args_error", "load_args"}, "the program checks files and options by itself")
        .any({"ds3_gather_for_generation"}, "completions are sampled by the model in training itself")
        .only({"max_epochs"}, {nullptr}, "training.num_train_epochs says how long a run is")
        .only({"optimizer"}, {nullptr, "", "lorap"}, "training.optim is AdamW")
        .only({"use_galore"}, unset, "training.optim is AdamW")
        .any({"galore_target_modules", "galore_rank", "galore_update_proj_gap", "galore_scale", "galore_proj_type",
              "galore_optim_per_parameter", "galore_with_embedding", "galore_quantization", "galore_proj_quant",
              "galore_proj_bits", "galore_proj_group_size", "galore_cos_threshold", "galore_gamma_proj",
              "galore_queue_size"},
             "it is for use_galore")
        .only({"lisa_activated_layers"}, {nullptr, 0}, "lora.layers_to_transform names the layers that are trained")
        .any({"lisa_step_interval"}, "it is for lisa_activated_layers")
        .only({"callbacks", "mrl_dims"}, unset, "no code of a file is run in training")
        .only({"eval_metric", "eval_use_evalscope", "eval_dataset", "predict_with_generate"}, unset,
              "an evaluation is of the loss; training.eval_metric is exact_match or regex here")
        .any({"eval_dataset_args", "eval_limit", "eval_generation_config", "extra_eval_args", "sortish_sampler",
              "generation_max_length", "generation_num_beams", "generation_config", "num_beams", "stream", "logprobs",
              "top_logprobs"},
             "it is for evaluations by generated answers")
        .only({"resume_only_model"}, {nullptr, false}, "model.adapter_name_or_path takes the adapter")
        .only({"use_ray"}, unset, "unsloth-train launch starts the processes")
        .any({"ray_exp_name", "device_groups"}, "it is for use_ray")
        .only({"zero_hpz_partition_size"}, {nullptr}, "distributed.zero_stage says what ranks share")
        .any(
            {"swanlab_token", "swanlab_project", "swanlab_workspace", "swanlab_exp_name", "swanlab_notification_method",
             "swanlab_webhook_url", "swanlab_secret", "swanlab_sender_email", "swanlab_receiver_email",
             "swanlab_smtp_server", "swanlab_smtp_port", "swanlab_email_language", "swanlab_mode"},
            "metrics go where training.report_to says")
        .any({"swift_version", "training_args", "ckpt_dir", "rank", "global_world_size", "local_world_size",
              "_val_dataset_exists", "_teacher_use_disable_adapter", "vllm_client", "world_size", "distributed_state",
              "deepspeed_plugin"},
             "ms-swift writes it into args.json");
}

/// Fields of `swift rlhf`, where they are not dealt with before.
void add_swift_rlhf_fields(PeerRows& rows) {
    const char* const engine = "completions are sampled by the model in training itself";
    rows.only({"beta", "label_smoothing", "rpo_alpha", "loss_weights"}, {nullptr, 0},
              "say \"rlhf_type\" in the file: the other fields do not tell which objective it is")
        .any({"vllm_gpu_memory_utilization",
              "vllm_tensor_parallel_size",
              "vllm_pipeline_parallel_size",
              "vllm_enable_expert_parallel",
              "vllm_max_num_seqs",
              "vllm_max_model_len",
              "vllm_disable_custom_all_reduce",
              "vllm_enforce_eager",
              "vllm_limit_mm_per_prompt",
              "vllm_max_lora_rank",
              "vllm_enable_prefix_caching",
              "vllm_use_async_engine",
              "vllm_quantization",
              "vllm_reasoning_parser",
              "vllm_disable_cascade_attn",
              "vllm_mm_processor_cache_gb",
              "vllm_speculative_config",
              "vllm_engine_kwargs",
              "vllm_data_parallel_size",
              "vllm_enable_lora",
              "vllm_mode",
              "vllm_server_base_url",
              "vllm_server_host",
              "vllm_server_port",
              "vllm_server_timeout",
              "vllm_server_group_port",
              "vllm_server_pass_dataset",
              "use_vllm",
              "enable_flattened_weight_sync",
              "sleep_level",
              "move_model_batches",
              "offload_optimizer",
              "offload_model"},
             engine);
}

void add_swift_grpo_fields(PeerRows& rows) {
    rows.any({"wandb_log_unique_prompts"}, "grpo.log_completions writes all of them to completions.jsonl")
        .any({"log_entropy", "log_rollout_offpolicy_metrics"}, "metrics have the entropy, and the sampler's difference")
        .only({"async_generate"}, unset, "a generation batch is sampled by the weights that its first step starts from")
        .only({"structured_outputs_regex"}, unset,
              "sampling is not constrained by an expression; a reward {\"regex\": …} scores it")
        .only({"stop_words"}, unset, "a completion ends at the tokenizer's end token")
        .only({"dynamic_sample"}, unset,
              "groups with equal rewards are not replaced; grpo.drop_zero_groups skips their passes")
        .any({"max_resample_times"}, "it is for dynamic_sample")
        .only({"multi_turn_scheduler", "use_gym_env", "gym_env"}, unset, "a completion is one answer to a prompt")
        .any({"max_turns", "completion_length_limit_scope"}, "it is for multi_turn_scheduler")
        .only({"chord_sft_dataset"}, unset, "no rows are mixed into the policy's loss")
        .any({"chord_sft_per_device_train_batch_size", "chord_enable_phi_function", "chord_mu_warmup_steps",
              "chord_mu_decay_steps", "chord_mu_peak", "chord_mu_valley"},
             "it is for chord_sft_dataset")
        .only({"advantage_reweight"}, unset, "advantages are not weighed by a teacher")
        .any({"rlsd_lambda", "rlsd_reweight_clip_range", "rlsd_lambda_warmup_steps", "rlsd_lambda_decay_steps",
              "rlsd_negative_only"},
             "it is for advantage_reweight")
        .only({"sdar_loss_coef"}, {nullptr, 0}, "no teacher's loss is added")
        .any({"sdar_gate_beta"}, "it is for sdar_loss_coef")
        .any({"real_tau", "fipo_decay_rate", "fipo_clip_range", "fipo_clip_high_only", "fipo_safety_threshold"},
             "it is for loss_type real or fipo");
}

/// Of teachers, reward models and references, and what is for another objective.
void add_swift_teacher_fields(PeerRows& rows) {
    rows.only({"teacher_model", "teacher_adapters", "teacher_model_server"}, unset,
              "training.objective distill learns from a teacher, and grpo does not")
        .any({"teacher_model_type", "teacher_model_revision", "teacher_deepspeed", "offload_teacher_model",
              "teacher_tag_key", "teacher_kl_coef", "gkd_logits_topk", "lmbda", "seq_kd", "sft_alpha"},
             "it is for a teacher")
        .only({"reward_model"}, unset, "no reward model is loaded; a reward {\"http\": URL} asks a server for scores")
        .any(
            {"reward_adapters", "reward_model_type", "reward_model_revision", "reward_template", "reward_model_plugin"},
            "it is for reward_model")
        .only({"sync_ref_model"}, unset, "the reference stays what it was at the start")
        .any({"ref_model_sync_steps", "ref_model_mixup_alpha"}, "it is for sync_ref_model")
        .only({"external_plugins", "custom_register_path"}, unset,
              "of plugins rewards alone are carried over, with rlhf_type grpo")
        .any({"ref_model", "ref_adapters"}, "it is for rlhf_type dpo, kto or grpo")
        .any({"ref_model_type", "ref_model_revision"}, "it is for ref_model")
        .only({"ld_alpha"}, {nullptr, 1}, "the tokens of an answer count alike, however long it is")
        .any({"num_ppo_epochs", "whiten_rewards", "kl_coef", "cliprange", "vf_coef", "cliprange_value", "gamma", "lam",
              "num_mini_batches", "local_rollout_forward_batch_size", "num_sample_generations", "missing_eos_penalty",
              "center_rewards_coefficient", "discopop_tau", "cpo_alpha", "simpo_gamma", "desirable_weight",
              "undesirable_weight"},
             "it is for another rlhf_type or loss_type")
        .any({"num_generations",
              "num_generations_eval",
              "num_iterations",
              "max_completion_length",
              "generation_batch_size",
              "steps_per_generation",
              "reward_funcs",
              "reward_weights",
              "log_completions",
              "epsilon",
              "epsilon_high",
              "delta",
              "overlong_filter",
              "scale_rewards",
              "top_entropy_quantile",
              "importance_sampling_level",
              "tau_pos",
              "tau_neg",
              "advantage_estimator",
              "kl_in_reward",
              "rollout_importance_sampling_mode",
              "rollout_importance_sampling_threshold",
              "off_policy_sequence_mask_delta",
              "temperature",
              "top_k",
              "top_p",
              "min_p",
              "repetition_penalty",
              "max_new_tokens",
              "response_length"},
             "it is for rlhf_type grpo")
        .any({"soft_max_length", "soft_cache_length"}, "it is for the reward soft_overlong")
        .any({"cosine_min_len_value_wrong", "cosine_max_len_value_wrong", "cosine_min_len_value_correct",
              "cosine_max_len_value_correct", "cosine_max_len"},
             "it is for the reward cosine")
        .any({"repetition_n_grams", "repetition_max_penalty"}, "it is for the reward repetition");
}

}  // namespace

const std::vector<PeerField>& swift_fields() {
    static const std::vector<PeerField> table = [] {
        PeerRows rows;
        add_swift_model_fields(rows);
        add_swift_adapter_fields(rows);
        add_swift_data_fields(rows);
        add_swift_training_fields(rows);
        add_swift_rlhf_fields(rows);
        add_swift_grpo_fields(rows);
        add_swift_teacher_fields(rows);
        return rows.take();
    }();
    return table;
}

}  // namespace unsloth::import
