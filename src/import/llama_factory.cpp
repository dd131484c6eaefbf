// Of LLaMA-Factory 0.9.5. Its training arguments are transformers' own, and known by the option table.
#include "import/importer.h"
#include "import/llama_factory_rows.h"
#include "import/model_names.h"
#include "import/template_names.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

void set_llama_factory_defaults(Importer& importer) {
    importer.set_default("model.load_in_4bit", false);
    importer.set_default("model.max_seq_length", 2048);
    importer.set_default("lora.r", 8);
    importer.set_default("training.per_device_train_batch_size", 8);
    importer.set_default("training.gradient_accumulation_steps", 1);
    importer.set_default("training.num_train_epochs", 3);
    importer.set_default("training.learning_rate", 5e-5);
    importer.set_default("training.lr_scheduler_type", "linear");
    importer.set_default("training.warmup_steps", 0);
    importer.set_default("training.weight_decay", 0);
    importer.set_default("training.optim", "adamw_torch");
    importer.set_default("training.seed", 42);
    importer.set_default("training.logging_steps", 500);
    importer.set_default("training.save_steps", 500);
}

void add_llama_factory_model(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("model_name_or_path", "model.path", {}, {nullptr})
        .means("adapter_name_or_path", "model.adapter_name_or_path", {}, {nullptr, ""})
        .only({"adapter_folder"}, off, "model.adapter_name_or_path is the adapter's own folder")
        .any({"cache_dir", "use_fast_tokenizer", "low_cpu_mem_usage", "trust_remote_code", "hf_hub_token",
              "ms_hub_token", "om_hub_token", "print_param_status", "offload_folder", "use_kv_cache", "infer_backend",
              "infer_dtype", "init_special_tokens", "device_map", "model_max_length", "block_diag_attn",
              "compute_dtype"},
             "weights are mapped from safetensors files, and no code of a repository is run")
        .any({"flash_attn", "use_unsloth", "enable_liger_kernel", "use_v1_kernels", "use_unsloth_gc",
              "use_reentrant_gc"},
             "kernels are compiled into the program")
        .only({"model_revision"}, {nullptr, "main"}, "model.path ORG/NAME@REVISION names one of the hub")
        .only({"resize_vocab", "split_special_tokens", "add_tokens", "add_special_tokens", "new_special_tokens",
               "new_special_tokens_config"},
              off, "the vocabulary is the model folder's; add tokens there first")
        .only({"rope_scaling"}, off,
              "model.rope_scaling takes type and factor: {\"rope_type\": \"linear\", \"factor\": 2.0}")
        .only({"shift_attn"}, off, "attention is the model's own")
        .only({"mixture_of_depths", "moe_aux_loss_coef"}, off, "this kind of model is not trained")
        .only({"train_from_scratch"}, off, "init writes a model with random weights to train from")
        .any({"upcast_layernorm", "upcast_lmhead_output"}, "norms and losses compute in float32")
        .only({"quantization_type"}, {nullptr, "nf4"},
              "model.load_in_4bit makes NF4; model.precision {\"default\": \"fp4\"} makes FP4")
        .only({"double_quantization"}, {nullptr, true}, "model.load_in_4bit quantises the scales too")
        .only({"quantization_device_map"}, off, "model.device_map says where layers are")
        .any({"video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen", "use_audio_in_video",
              "audio_sampling_rate"},
             "videos and sound are not trained on; rows with them are refused when they are read")
        .any({"export_dir", "export_size", "export_device", "export_quantization_bit", "export_quantization_dataset",
              "export_quantization_nsamples", "export_quantization_maxlen", "export_legacy_format",
              "export_hub_model_id"},
             "unsloth-train merge, quantize and export make other forms after the run")
        .only({"use_kt", "kt_use_lora_experts"}, off,
              "model.device_map says which layers are in host memory; KTransformers is not used")
        .any({"kt_weight_path", "kt_expert_checkpoint_path", "kt_lora_expert_num", "kt_lora_expert_intermediate_size",
              "vllm_maxlen", "vllm_gpu_util", "vllm_enforce_eager", "vllm_max_lora_rank", "vllm_config",
              "sglang_maxlen", "sglang_mem_fraction", "sglang_tp_size", "sglang_config", "sglang_lora_backend"},
             "it applies to inference, or KTransformers");
}

void add_llama_factory_data(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("cutoff_len", "model.max_seq_length", {}, {nullptr})
        .means("train_on_prompt", "data.train_on_prompt", {}, {nullptr})
        .means("mask_history", "data.train_on_last_turn_only", {}, {nullptr})
        .means("val_size", "data.val_size", {}, {nullptr, 0})
        .means("disable_shuffling", "data.shuffle", {{true, false}, {false, true}}, {nullptr},
               "true or false is expected")
        .any({"buffer_size", "overwrite_cache", "preprocessing_batch_size", "preprocessing_num_workers",
              "data_shared_file_system", "tokenized_path", "streaming"},
             "rows are encoded once, by all cores, into a cache (data.cache_dir)")
        .any({"ignore_pad_token_for_loss", "eval_num_beams", "preserve_thinking"}, "rows are not padded")
        .any({"eval_on_each_dataset"}, "each set of data.eval_files has a loss of its own")
        .only({"tool_format", "default_system"}, off,
              "the chat template writes tools; a row's own system text is taken")
        .any({"sortish_sampler"}, "batches hold rows as they come");
}

void add_finetuning(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("lora_rank", "lora.r", {}, {nullptr})
        .means("lora_dropout", "lora.lora_dropout", {}, {nullptr})
        .means("use_rslora", "lora.use_rslora", {}, {nullptr})
        .means("use_dora", "lora.use_dora", {}, {nullptr})
        .only({"pissa_init", "pissa_convert"}, off, "A is drawn uniformly and B is 0")
        .any({"pissa_iter"}, "it applies to pissa_init")
        .only({"create_new_adapter"}, off, "merge the first adapter (unsloth-train merge), and train on the result")
        .means("loraplus_lr_ratio", "lora.loraplus_lr_ratio", {}, {nullptr})
        .any({"loraplus_lr_embedding"}, "it is of adapters of embeddings, which there are none of")
        .only({"module_dropout"}, {nullptr, 0}, "OFT is not there")
        .any({"oft_rank", "oft_block_size", "oft_target"}, "it applies to finetuning_type oft")
        .any({"freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"},
             "it applies to finetuning_type freeze")
        .only({"use_llama_pro"}, off, "all layers are there from the beginning")
        .only({"use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"}, off, "training.optim is AdamW")
        .any({"galore_target",
              "galore_rank",
              "galore_update_interval",
              "galore_scale",
              "galore_proj_type",
              "galore_layerwise",
              "apollo_target",
              "apollo_rank",
              "apollo_update_interval",
              "apollo_scale",
              "apollo_proj",
              "apollo_proj_type",
              "apollo_scale_type",
              "apollo_layerwise",
              "apollo_scale_front",
              "badam_mode",
              "badam_start_block",
              "badam_switch_mode",
              "badam_switch_interval",
              "badam_update_ratio",
              "badam_mask_mode",
              "badam_verbose"},
             "it applies to another optimizer")
        .only({"use_dft_loss", "use_asft_loss", "use_eaft_loss"}, off, "the loss is the plain cross-entropy")
        .any({"asft_alpha", "eaft_alpha"}, "it applies to another loss")
        .only({"pref_bco_weight"}, {nullptr, 0}, "training.objective dpo has no such term")
        .only({"ref_model", "ref_model_adapters", "ld_alpha"}, {nullptr},
              "preferences are measured against the base, or the adapter as it was at the start (preference.reference)")
        .any({"ref_model_quantization_bit"}, "it applies to ref_model")
        .any({"ppo_buffer_size", "ppo_epochs", "ppo_score_norm", "ppo_target", "ppo_whiten_rewards", "reward_model",
              "reward_model_adapters", "reward_model_quantization_bit", "reward_model_type"},
             "it applies to the stage ppo")
        .any({"use_swanlab", "swanlab_project", "swanlab_workspace", "swanlab_run_name", "swanlab_mode",
              "swanlab_api_key", "swanlab_logdir", "swanlab_lark_webhook_url", "swanlab_lark_secret"},
             "training.report_to sends metrics to tensorboard, prometheus, html and wandb, and logging.metrics_file "
             "has them")
        .only({"freeze_vision_tower", "freeze_multi_modal_projector"}, {nullptr, true},
              "towers are frozen; lora.vision true trains adapters in them")
        .only({"freeze_language_model"}, off, "the language model is always trained")
        .only({"use_mca", "use_hyper_parallel", "hyper_parallel_args"}, off, PeerRows::ranks_share)
        .any({"compute_accuracy"}, "evaluations have eval_token_accuracy")
        .any({"plot_loss", "include_effective_tokens_per_second"},
             "the metrics hold losses, tokens and rates of every logged step")
        .means("pure_bf16", "model.dtype", {{true, "bfloat16"}}, off, "true or false is expected");
}

void add_training(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.any({"ray_num_workers", "ray_init_kwargs", "master_addr", "master_port"},
             "unsloth-train launch, torchrun or srun say how many processes there are, and where they meet")
        .only({"fp8", "fp8_enable_fsdp_float8_all_gather"}, off,
              "model.compute_dtype int8 and fp8_both compute the base's products in 8 bit, with scales of their own")
        .any({"fp8_backend"}, "it applies to fp8")
        .only({"predict_with_generate"}, off,
              "training.eval_metric judges answers in each evaluation, training.sample_prompts names prompts that it "
              "answers")
        .any({"generation_max_length", "generation_num_beams", "generation_config", "do_sample", "temperature", "top_p",
              "top_k", "num_beams", "max_length", "max_new_tokens", "repetition_penalty", "length_penalty",
              "skip_special_tokens"},
             "answers are generated after the run (unsloth-train generate)");
}

/// Of its trainers on Megatron.
void add_megatron(PeerRows& rows) {
    const auto& off = PeerRows::off;
    rows.means("tensor_model_parallel_size", "distributed.tp_size", {}, {nullptr})
        .means("pipeline_model_parallel_size", "distributed.pp_size", {}, {nullptr})
        .means("context_parallel_size", "distributed.cp_size", {}, {nullptr})
        .means("use_packed_sequences", "data.packing", {{true, true}}, off, "true or false is expected")
        .aside({"expert_model_parallel_size", "virtual_pipeline_model_parallel_size"}, PeerRows::ranks_share,
               {nullptr, 1})
        .aside({"use_distributed_optimizer"}, "distributed.zero_stage 1 divides the optimizer's states among ranks",
               {nullptr, false})
        .any({"sequence_parallel", "overlap_param_gather", "overlap_grad_reduce", "moe_token_dispatcher_type",
              "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"},
             "section distributed says how ranks share the work")
        .any({"bias_activation_fusion", "apply_rope_fusion", "masked_softmax_fusion", "cross_entropy_loss_fusion",
              "moe_grouped_gemm"},
             "kernels are compiled into the program")
        .any({"recompute_granularity", "recompute_method", "recompute_num_layers"},
             "training.gradient_checkpointing auto takes what fits")
        .any({"export_hf_on_finish"}, "results are Hugging Face folders")
        .only({"mixed_precision"}, {nullptr, "bf16_mixed"}, "model.dtype says what is computed in")
        .only({"calculate_per_token_loss"}, {nullptr, true}, "the loss is the mean over a step's labels")
        .only({"megatron_pretrained_checkpoint"}, off, "model.path is a Hugging Face folder")
        .only({"extra_config"}, off, "fields of Megatron's own are not read");
}

const std::vector<PeerField>& llama_factory_fields() {
    static const std::vector<PeerField> table = [] {
        PeerRows rows;
        add_llama_factory_model(rows);
        add_llama_factory_data(rows);
        add_finetuning(rows);
        add_training(rows);
        add_megatron(rows);
        return rows.take();
    }();
    return table;
}

/// pref_loss names the formula, and of orpo and simpo the method.
void import_preferences(Importer& importer, const std::string& stage) {
    const std::string loss = importer.take_text("pref_loss").value_or("sigmoid");
    const bool orpo = stage == "dpo" && loss == "orpo", dpo = stage == "dpo" && !orpo, kto = stage == "kto";
    if (dpo || orpo || kto) {
        importer.set("stage", "training.objective", orpo ? "orpo" : stage);
        import_dropout_of_preferences(importer, "lora_dropout");
    }
    if (dpo)
        importer.set("pref_loss", "preference.loss_type", loss);
    else if (!orpo && loss != "sigmoid")
        importer.note("pref_loss", "has no effect: it applies to the stage dpo");
    struct Mapped {
        const char *key, *option;
        bool applies;
        double off;
    };
    for (const auto& [key, option, applies, off] :
         {Mapped{"pref_beta", "preference.beta", dpo || orpo || kto, 0.1},
          Mapped{"dpo_label_smoothing", "preference.label_smoothing", dpo && loss == "sigmoid", 0},
          Mapped{"simpo_gamma", "preference.simpo_gamma", dpo && loss == "simpo", 0.5},
          Mapped{"kto_chosen_weight", "preference.desirable_weight", kto, 1},
          Mapped{"kto_rejected_weight", "preference.undesirable_weight", kto, 1}}) {
        const auto value = importer.take(key);
        if (value && applies)
            importer.set(key, option, *value);
        else if (value && *value != off)
            importer.note(key, "has no effect: it applies to another stage or pref_loss");
    }
    const auto share = importer.take("pref_ftx");
    if (!share || *share == 0) return;
    if (dpo)
        importer.set("pref_ftx", "preference.rpo_alpha", *share);
    else if (orpo || kto)
        importer.lose("pref_ftx", cat(shown(*share), ": preference.rpo_alpha only applies to training.objective dpo"));
    else
        importer.note("pref_ftx", "has no effect: it applies to the stages dpo and kto");
}

void import_quantization(Importer& importer, bool full) {
    const auto bits = importer.take("quantization_bit");
    const std::string method = importer.take_text("quantization_method").value_or("bnb");
    if (!bits) {
        if (method != "bnb") importer.note("quantization_method", "has no effect: quantization_bit is not given");
    } else if (full) {
        importer.lose("quantization_bit", "finetuning_type full trains all weights, in 16 bit");
    } else if ((*bits != 4 && *bits != 8) || (method != "bnb" && method != "bitsandbytes")) {
        importer.lose("quantization_bit", cat(shown(*bits), " by ", method,
                                              ": model.load_in_4bit and load_in_8bit quantise as "
                                              "bitsandbytes does; the base stays in 16 bit"));
    } else {
        importer.set("quantization_bit", *bits == 4 ? "model.load_in_4bit" : "model.load_in_8bit", true);
    }
}

/// The stage.
std::string import_method(Importer& importer) {
    const std::string stage = importer.take_text("stage").value_or("sft");
    if (stage != "sft" && stage != "pt" && stage != "dpo" && stage != "kto")
        importer.lose("stage",
                      cat(stage, ": sft, pt, dpo and kto are there; no rewards; training.objective stays sft"));
    import_preferences(importer, stage);
    if (importer.take_flag("neat_packing")) {
        if (importer.take("packing")) importer.note("packing", "has no effect: neat_packing is on");
        importer.set("neat_packing", "data.packing", true);
    } else if (const auto packing = importer.take("packing"); packing ? *packing == true : stage == "pt") {
        importer.set("packing", "data.packing", true);
        importer.note("packing", "data.packing puts whole rows together, each attending only to itself");
    }
    // Texts that are put together are cut into pieces of cutoff_len.
    if (stage == "pt")
        importer.set_default("data.overflow_strategy", importer.config().data.packing ? "split" : "truncate");
    const std::string type = importer.take_text("finetuning_type").value_or("lora");
    const bool full = type == "full";
    if (!full && type != "lora")
        importer.lose("finetuning_type", cat(type, ": lora and full are there; lora is written"));
    importer.set("finetuning_type", "lora.finetuning_type", full ? "full" : "lora");
    import_quantization(importer, full);
    if (full) {
        for (const char* key : {"lora_rank", "lora_alpha", "lora_dropout", "lora_target", "additional_target"})
            if (importer.take(key)) importer.note(key, "has no effect: finetuning_type full trains all weights");
        return stage;
    }
    const Json rank = importer.look("lora_rank"), alpha = importer.take("lora_alpha").value_or(nullptr);
    // Twice the rank unless it is said.
    importer.set("lora_alpha", "lora.lora_alpha",
                 !alpha.is_null()   ? alpha
                 : rank.is_number() ? Json(2 * rank.get<double>())
                                    : Json(16));
    const auto targets = importer.take_names("lora_target");
    const bool all = targets.empty() || targets == std::vector<std::string>{"all"};
    import_modules(importer, "lora_target", all ? Json("all-linear") : Json(targets), "additional_target");
    return stage;
}

void import_llama_factory_template(Importer& importer, const std::string& stage, const LlamaFactoryRows& rows) {
    const auto name = importer.take_text("template");
    const auto thinking = importer.take("enable_thinking");
    if (thinking) importer.set("enable_thinking", "data.chat_template_kwargs", {{"enable_thinking", *thinking}});
    if (!name) return;
    if (stage == "pt") return importer.note("template", "has no effect: texts are trained as they are");
    const Json model = importer.look("model_name_or_path");
    // What auto means for conversations alone.
    const char* const own = rows.conversations ? "auto" : "default";
    if (const auto known = find_template("llamafactory", *name, model.is_string() ? model.get<std::string>() : "")) {
        importer.set("template", "data.template", known->ours.empty() ? own : known->ours);
        if (!known->note.empty()) importer.note("template", known->note);
        return;
    }
    // Of one turn, which has an empty thought in front of its answer; of several only the last has one in the model's.
    const bool thinks = !thinking || *thinking == true;
    if (*name == "qwen3" && rows.single_turns && thinks && model.is_string() && has_hybrid_thinking(model)) {
        importer.set("template", "data.template", own);
        return importer.note("template", "qwen3 writes single turns as this model's own template does");
    }
    importer.set_default("data.template", own);
    importer.lose("template", cat(*name, ": data.template ", own,
                                  " takes the model's own, which may differ in its system text; "
                                  "unsloth-train data shows the rows"));
}

}  // namespace

void import_llama_factory(Importer& importer) {
    set_llama_factory_defaults(importer);
    const std::string stage = import_method(importer);
    const LlamaFactoryRows rows = import_llama_factory_rows(importer, stage);
    import_llama_factory_template(importer, stage, rows);
    if (importer.take_flag("disable_gradient_checkpointing"))
        importer.set("disable_gradient_checkpointing", "training.gradient_checkpointing", "none");
    import_sharding(importer);
    import_precision(importer, "", "");
    import_warmup(importer);
    import_saving(importer, "steps");
    import_evaluation(importer, "no", rows.to_evaluate);
    import_best(importer, "early_stopping_steps");
    import_upload(importer);
    importer.take_rest(llama_factory_fields(), true);
}

}  // namespace unsloth::import
