#include "config/option_table.h"

#include "unsloth/config/schedule_arguments.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::config {
namespace {

std::vector<std::string> projection_list() {
    return {spec::projection_names.begin(), spec::projection_names.end()};
}

void declare_model(OptionSet& options, ModelOptions& model) {
    options.section("model", "Model", "What is trained on: the frozen base, and an adapter to continue from.");
    options
        .add("path", model.path,
             "Folder of a Hugging Face checkpoint, a .safetensors file, or the id of a model on the Hugging Face hub "
             "(ORG/NAME, ORG/NAME@REVISION), which is downloaded into its cache.")
        .path("PATH")
        .suggested_for({"model", "model_name", "model_name_or_path", "base_model", "model_path"})
        .on_resume(OnResume::told);
    options
        .add("load_in_4bit", model.load_in_4bit,
             "Hold the base in NF4: 16 and 32-bit weights are quantised while loading. With false a 16-bit checkpoint "
             "stays 16-bit. A checkpoint that is stored in 4 or 8 bit stays as it is either way.")
        .on_resume(OnResume::fixed);
    options
        .add("load_in_8bit", model.load_in_8bit,
             "Hold the base in 8 bit with a scale for each row (LLM.int8), instead of load_in_4bit: 16 and 32-bit "
             "weights are quantised while loading. Products have the weights' values in dtype.")
        .on_resume(OnResume::fixed);
    options
        .add(
            "precision", model.precision,
            "Types of single modules' frozen weights, from any checkpoint: nf4, fp4, int8, bf16, fp16 or fp32, as in "
            "{\"default\": \"nf4\", \"model.layers.0\": \"bf16\", \"model.layers.1-3.mlp.down_proj\": \"int8\", "
            "\"lm_head\": \"int8\"}. default is for the layers' projections, instead of load_in_4bit and load_in_8bit; "
            "the longest name that fits a module holds. Embeddings and lm_head stay as they are unless they are "
            "named.")
        .on_resume(OnResume::fixed);
    options.add_choice("dtype", model.dtype, compute_types(), "Type of activations and of the GEMMs' operands.")
        .shorthand("model", "bf16", "bfloat16")
        .shorthand("model", "fp16", "float16")
        .shorthand("training", "bf16", "bfloat16")
        .shorthand("training", "fp16", "float16")
        .alias("model", "torch_dtype")
        .alias("model", "bnb_4bit_compute_dtype")
        .synonym("bf16", "bfloat16")
        .synonym("fp16", "float16")
        .synonym("half", "float16")
        .synonym("fp32", "float32")
        .synonym("float", "float32")
        .synonym("torch.bfloat16", "bfloat16")
        .synonym("torch.float16", "float16")
        .synonym("torch.float32", "float32")
        .synonym(nullptr, "bfloat16")
        .on_resume(OnResume::told);
    options
        .add_choice(
            "compute_dtype", model.compute_dtype, {{"auto", ComputeType::same}, {"fp8", ComputeType::fp8}},
            "Operands of the frozen base's products: auto: of type dtype; fp8: e4m3 with a scale for each row of "
            "activations and of weights (bfloat16 runs that train a LoRA; about half the time for these products, "
            "2 bytes a weight). Adapters, attention and lm_head stay in dtype.")
        .on_resume(OnResume::told);
    options
        .add("adapter_name_or_path", model.adapter_name_or_path,
             "PEFT adapter folder, or id on the hub, to continue from. Its own configuration gives r, alpha, patterns "
             "and modules; a lora "
             "option that says otherwise is an error.")
        .path("DIR")
        .suggested_for({"adapter", "adapter_path", "lora_path"})
        .on_resume(OnResume::told);
    options
        .add("max_seq_length", model.max_seq_length,
             "Longest row in tokens; data.long_rows says what becomes of longer ones.")
        .at_least(1)
        .alias("model", "max_length")
        .alias("training", "max_length")
        .alias("training", "max_seq_length")
        .suggested_for({"cutoff_len", "seq_len", "seq_length", "context_length", "model_max_length"})
        .on_resume(OnResume::fixed);
    options
        .add_object(
            "rope_scaling", model.rope_scaling,
            "How positions are scaled, instead of what config.json says, in Hugging Face's words: {\"rope_type\": "
            "\"linear\", \"factor\": 4.0}; rope_type linear, dynamic, yarn, llama3, longrope or default. It is written "
            "into adapter_config.json and into a merged model's config.json. A max_seq_length beyond the model's "
            "positions needs it.")
        .synonym(nullptr, Json::object())
        .alias("training", "rope_scaling")
        .on_resume(OnResume::fixed);
    options
        .add_object(
            "device_map", model.device_map,
            "Where the frozen model lies, which changes no bit of the results (but products of few tokens round "
            "otherwise on a GPU where layers lie on the disk). auto: on the GPU; where that is "
            "too small even with gradient_checkpointing full+offload, its last layers in host memory, and what "
            "does not fit there on the disk, from where they are copied ahead of use. On several GPUs "
            "sequential (each as much as it holds), balanced (by time) and balanced_low_0 (less for the first) start "
            "a process a GPU, which have the layers in turn (distributed.pp_size), and so does an object that names "
            "several. An object says it by module: {\"model.embed_tokens\": \"cpu\", \"model.layers.0-15\": 0, "
            "\"model.layers.16-31\": \"cpu\", \"lm_head\": 0}; the longest name that fits a module holds.")
        .one_of({"auto", "sequential", "balanced", "balanced_low_0"})
        .synonym(nullptr, "auto")
        .synonym("cuda", "auto")
        .on_resume(OnResume::free);
    options
        .add("offload_folder", model.offload_folder,
             "Folder for weights that device_map leaves on the disk but that the checkpoint has in another form (they "
             "are quantised while loading): a file that is gone when the run ends. What a 4-bit checkpoint has is read "
             "in place and needs none.")
        .path("DIR")
        .on_resume(OnResume::free);
    options
        .add("max_memory", model.max_memory,
             "Most memory that a run plans for, by device: {\"0\": \"12GiB\", \"cpu\": \"64GiB\"} (a GPU's number, "
             "and host memory). Without it, what is free; of host memory what the control group allows.")
        .on_resume(OnResume::free);
}

void declare_lora(OptionSet& options, LoraOptions& lora) {
    options.section("lora", "LoRA", "Which weights are trained. Names and meaning are PEFT's.", OnResume::fixed);
    options.add_choice("finetuning_type", lora.finetuning_type,
                       {{"lora", FinetuningType::lora}, {"full", FinetuningType::full}},
                       "lora trains adapters on a frozen base; full trains all weights of a 16 or 32-bit model.");
    options.add("r", lora.r, "Rank of the adapters.").at_least(1).suggested_for({"rank", "lora_r", "lora_rank"});
    options.add("lora_alpha", lora.lora_alpha, "The adapters' product is scaled by lora_alpha / r.")
        .above(0)
        .suggested_for({"alpha"});
    options.add("lora_dropout", lora.lora_dropout, "Probability that an element of an adapter's input is dropped.")
        .at_least(0)
        .below(1)
        .suggested_for({"dropout"});
    options.add("use_rslora", lora.use_rslora, "Scale by lora_alpha / sqrt(r) instead of lora_alpha / r.");
    options.add("use_dora", lora.use_dora,
                "DoRA: each output of an adapted projection gets a trained magnitude, and base and adapter together "
                "give the direction alone.");
    options.add("target_modules", lora.target_modules, "Projections that get an adapter.")
        .one_of(projection_list())
        .synonym("all-linear", projection_list())
        .synonym(Json::array({"all-linear"}), projection_list())
        .synonym(nullptr, projection_list())
        .suggested_for({"lora_target", "lora_target_modules", "target"});
    options.add("modules_to_save", lora.modules_to_save, "Modules trained as a whole and saved beside the adapters.")
        .one_of({"embed_tokens", "lm_head"})
        .synonym(nullptr, Json::array())
        .suggested_for({"additional_target"});
    options
        .add("rank_pattern", lora.rank_pattern,
             "r for modules whose path matches `(.*\\.)?(key)$`, a regular expression; the first match wins.")
        .at_least(1)
        .synonym(nullptr, Json::object());
    options.add("alpha_pattern", lora.alpha_pattern, "lora_alpha by module, as in rank_pattern.")
        .above(0)
        .synonym(nullptr, Json::object());
    options.add("layers_to_transform", lora.layers_to_transform, "Layers that get adapters, counted from 0; null: all.")
        .at_least(0);
    options
        .add(
            "loraplus_lr_ratio", lora.loraplus_lr_ratio,
            "LoRA+: the learning rate of the adapters' B is this many times that of A (16 is usual); 0: both have one.")
        .at_least(0)
        .alias("training", "loraplus_lr_ratio")
        .synonym(nullptr, 0)
        .on_resume(OnResume::told);
    options
        .add("loraplus_lr_embedding", lora.loraplus_lr_embedding,
             "Learning rate of embed_tokens, where modules_to_save trains it; null: that of the adapters.")
        .at_least(0)
        .alias("training", "loraplus_lr_embedding")
        .on_resume(OnResume::told);
}

std::vector<std::pair<std::string, DataFormat>> row_formats() {
    return {{"auto", DataFormat::automatic},        {"tokenized", DataFormat::tokenized},
            {"alpaca", DataFormat::alpaca},         {"messages", DataFormat::messages},
            {"sharegpt", DataFormat::sharegpt},     {"prompt_completion", DataFormat::prompt_completion},
            {"preference", DataFormat::preference}, {"text", DataFormat::text}};
}

void declare_source(OptionSet& options, DataSource& source) {
    options.add("path", source.path, "File, folder or glob, as train_file.").path("FILE").must_be_given();
    options.add_choice("format", source.format, row_formats(), "What a row holds; auto: data.format.");
    options.add("weight", source.weight, "Share of an epoch, relative to the other sources' weights.").above(0);
    options.add("split", source.split,
                "Only files of this split, by their names; empty: all, or train where a folder has one.");
    options.add("columns", source.columns, "Names of columns in the files; empty: data.columns.");
    options.add("template", source.template_name, "Chat template of its rows; empty: data.template.").path("NAME");
    options.add("max_samples", source.max_samples, "Only so many rows, from its beginning; 0: all.")
        .at_least(0)
        .suggested_for({"num_samples", "max_rows", "limit"});
}

void declare_data(OptionSet& options, DataOptions& data) {
    options.section("data", "Data", "Rows to train and to evaluate on.", OnResume::fixed);
    options
        .add("train_file", data.train_file,
             "Training rows: a file (JSON Lines, JSON array, CSV, TSV, plain text, each also as .gz or .zst; Parquet), "
             "a folder "
             "of such files, a glob, or a data set of the Hugging Face hub (ORG/NAME).")
        .path("FILE")
        .suggested_for({"dataset", "data", "train", "train_data", "dataset_path", "data_path", "file"})
        .on_resume(OnResume::told);
    options
        .add_list(
            "datasets", data.datasets, declare_source,
            "Several sources of training rows, instead of train_file: [{\"path\", \"format\", \"weight\", \"split\", "
            "\"columns\", \"template\", \"max_samples\"}], all but path optional. Weights, on all or on none, are the "
            "sources' shares of an epoch.")
        .suggested_for({"sources", "dataset_mixer", "train_files"})
        .on_resume(OnResume::told);
    options.add("eval_file", data.eval_file, "Evaluation rows: a file, folder or glob.")
        .path("FILE")
        .suggested_for({"validation_file", "valid_file", "test_file", "eval_dataset", "eval_data"})
        .on_resume(OnResume::told);
    options
        .add(
            "eval_files", data.eval_files,
            "Several named sets of evaluation rows instead of eval_file: {\"law\": \"law.jsonl\", \"chat\": "
            "\"chat.jsonl\"}. Each gets a loss of its own (eval_law_loss) beside that of all their tokens (eval_loss).")
        .on_resume(OnResume::told);
    options
        .add("val_size", data.val_size,
             "Rows of the training data held out for evaluation: below 1 a fraction, else a number; 0: none.")
        .at_least(0);
    options.add_choice(
        "format", data.format, row_formats(),
        "What a row holds: input_ids; instruction, input, output; messages; conversations; prompt, completion; "
        "chosen, rejected; or text. auto looks at the rows' keys.");
    options
        .add("columns", data.columns,
             "Names of columns in the files, by the name that is known here: {\"instruction\": \"question\", "
             "\"output\": \"answer\"}.")
        .suggested_for({"column_mapping", "field_mapping", "rename_columns"});
    options.add_choice("text_unit", data.text_unit, {{"paragraph", TextUnit::paragraph}, {"file", TextUnit::file}},
                       "What a row of a plain text file is: the lines between two blank ones, or the whole file.");
    options.add_choice(
        "invalid_utf8", data.invalid_utf8, {{"refuse", InvalidUtf8::refuse}, {"replace", InvalidUtf8::replace}},
        "A row that is not UTF-8: refuse takes it for a bad row, replace makes its broken bytes U+FFFD.");
    options
        .add("template", data.template_name,
             "Chat template: auto (the model's own, else a built-in one that fits its tokens), a name (of one of the "
             "model's, or llama-3, llama-2, mistral, chatml, qwen, alpaca, zephyr), or a path to a .jinja file.")
        .path("NAME")
        .suggested_for({"chat_template", "prompt_template"});
    options.add_object(
        "chat_template_kwargs", data.chat_template_kwargs,
        "Variables of the chat template, such as {\"enable_thinking\": false}. A row's own columns win, and "
        "over these its column chat_template_kwargs.");
    options.add("train_on_prompt", data.train_on_prompt, "Prompts are targets too, not only answers.");
    options.add("train_on_last_turn_only", data.train_on_last_turn_only,
                "Of a conversation's answers only the last is a target.");
    options.add("shuffle", data.shuffle,
                "Another order of rows every epoch, drawn from training.seed; false: the file's.");
    options
        .add("packing", data.packing,
             "Fill rows of max_seq_length with several examples, each attending only to itself.")
        .alias("training", "packing");
    options.add_choice("long_rows", data.long_rows,
                       {{"auto", LongRows::automatic},
                        {"truncate", LongRows::truncate},
                        {"split", LongRows::split},
                        {"drop", LongRows::drop}},
                       "A row of more than model.max_seq_length tokens: truncate cuts it, split makes rows of all its "
                       "tokens, drop leaves it out and counts it; auto splits plain text and truncates other rows.");
    options.add("drop_duplicates", data.drop_duplicates,
                "Leave out training rows whose tokens and labels are those of an earlier row, and count them.");
    options.add("skip_bad_rows", data.skip_bad_rows, "Count and skip rows that cannot be read, instead of stopping.");
    options
        .add("cache_dir", data.cache_dir,
             "Folder for encoded rows, so that the next start need not tokenise; auto: unsloth-train in the user's "
             "cache folder, "
             "for data of 1 MiB or more; empty: none.")
        .path("DIR")
        .suggested_for({"dataset_cache", "tokenized_path", "cache"})
        .on_resume(OnResume::free);
    options
        .add("cache_max_gib", data.cache_max_gib,
             "GiB that the encoded rows in cache_dir may take: a new file drives out those not used for longest, never "
             "one that a run has open; "
             "0: no bound.")
        .at_least(0)
        .at_most(100000)
        .on_resume(OnResume::free);
}

void declare_optimizer(OptionSet& options, TrainingOptions& training);
void declare_preference(OptionSet& options, PreferenceOptions& preference);

void declare_training(OptionSet& options, TrainingOptions& training) {
    options.section("training", "Training", "The run: batches, length, optimizer, schedule, what is written when.");
    options.add("output_dir", training.output_dir, "Folder for the adapter, the metrics and the run's configuration.")
        .path("DIR")
        .synonym(nullptr, training.output_dir)
        .suggested_for({"out", "output", "save_dir"})
        .on_resume(OnResume::free);
    options
        .add_choice(
            "objective", training.objective,
            {{"sft", Objective::sft},
             {"dpo", Objective::dpo},
             {"orpo", Objective::orpo},
             {"kto", Objective::kto},
             {"distill", Objective::distill}},
            "What is learnt: the rows' targets (sft), pairs {prompt, chosen, rejected} (dpo with its variants, orpo), "
            "answers with a verdict {prompt, completion, label} (kto), or what distill.teacher says of the rows' "
            "targets (distill). A pair counts as one row.")
        .suggested_for({"stage", "rl", "method"})
        .on_resume(OnResume::fixed);
    options
        .add("per_device_train_batch_size", training.per_device_train_batch_size,
             "Rows of a micro-batch on one device.")
        .at_least(1)
        .alias("training", "per_gpu_train_batch_size")
        .suggested_for({"batch_size", "train_batch_size", "micro_batch_size", "per_device_batch_size", "batch"})
        .on_resume(OnResume::told);
    options
        .add("max_tokens_per_batch", training.max_tokens_per_batch,
             "Tokens of a micro-batch on one device, filled with as many rows as fit, instead of "
             "per_device_train_batch_size rows; 0: "
             "off.")
        .at_least(0)
        .suggested_for({"max_tokens", "tokens_per_batch", "batch_tokens"})
        .on_resume(OnResume::fixed);
    options
        .add("gradient_accumulation_steps", training.gradient_accumulation_steps,
             "Micro-batches of one optimizer step.")
        .at_least(1)
        .suggested_for({"grad_accum", "accumulation_steps", "gradient_accumulation"})
        .on_resume(OnResume::told);
    options
        .add_choice("micro_batch", training.micro_batch,
                    {{"as_given", PassRows::as_given}, {"auto", PassRows::automatic}},
                    "Rows of a pass: per_device_train_batch_size of them (as_given), or as many of a step's rows as "
                    "are predicted to be fastest on this GPU (auto), with the same losses but for rounding. A step has "
                    "per_device_train_batch_size x gradient_accumulation_steps rows either way.")
        .on_resume(OnResume::told);
    options.add("num_train_epochs", training.num_train_epochs, "Passes over the data; may be a fraction.")
        .above(0)
        .suggested_for({"epochs", "num_epochs"})
        .on_resume(OnResume::told);
    options
        .add("max_steps", training.max_steps,
             "Optimizer steps; -1: as num_train_epochs says; 0: check everything, plan memory and stop.")
        .at_least(-1)
        .suggested_for({"steps", "num_steps", "num_train_steps"})
        .on_resume(OnResume::told);
    options
        .add("learning_rate", training.learning_rate,
             "Peak learning rate; a string such as \"2e-4\" is read too. auto: by a published rule, from the model's "
             "family "
             "and hidden size, which the log tells.")
        .at_least(0)
        .number_as_text()
        .synonym("auto", nullptr)
        .suggested_for({"lr"})
        .on_resume(OnResume::told);
    options
        .add_choice("lr_scheduler_type", training.lr_scheduler_type, schedule_names(),
                    "Course of the learning rate; names and formulas are transformers'.")
        .suggested_for({"scheduler", "lr_scheduler", "schedule"})
        .on_resume(OnResume::told);
    options
        .add("lr_scheduler_kwargs", training.lr_scheduler_kwargs,
             "The schedule's own arguments, such as {\"num_cycles\": 2} or {\"num_decay_steps\": 100}.")
        .synonym(nullptr, Json::object())
        .on_resume(OnResume::told);
    options.add("warmup_steps", training.warmup_steps, "Steps in which the learning rate rises from 0.")
        .at_least(0)
        .suggested_for({"warmup"})
        .on_resume(OnResume::told);
    options.add("warmup_ratio", training.warmup_ratio, "The same as a share of all steps. Give one of the two.")
        .at_least(0)
        .at_most(1)
        .on_resume(OnResume::told);
    declare_optimizer(options, training);
}

/// How a step is computed.
void declare_passes(OptionSet& options, TrainingOptions& training) {
    options
        .add("neftune_noise_alpha", training.neftune_noise_alpha,
             "NEFTune: uniform noise of up to alpha / sqrt(tokens x hidden size) is added to the embeddings in "
             "training (5 is "
             "usual); 0: none.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"noisy_embedding_alpha", "neftune_alpha"})
        .on_resume(OnResume::told);
    options.add("seed", training.seed, "Seed of initial adapters, data order, held-out rows, dropout and noise.")
        .at_least(0)
        .suggested_for({"random_seed", "random_state"})
        .on_resume(OnResume::fixed);
    options
        .add_choice(
            "gradient_checkpointing", training.gradient_checkpointing,
            {{"auto", GradientCheckpointing::automatic},
             {"none", GradientCheckpointing::none},
             {"mlp", GradientCheckpointing::mlp},
             {"attention", GradientCheckpointing::attention},
             {"full", GradientCheckpointing::full},
             {"none+offload", GradientCheckpointing::none_offload},
             {"mlp+offload", GradientCheckpointing::mlp_offload},
             {"attention+offload", GradientCheckpointing::attention_offload},
             {"full+offload", GradientCheckpointing::full_offload}},
            "What is computed again in the backward pass instead of kept: nothing (none), a layer's MLP (mlp), "
            "all but its attention (attention), or all but its input (full). With +offload, what is kept lies "
            "in pinned host memory. auto takes the mixture over the layers that is predicted to be fastest in the "
            "memory there is. true means full, false none, \"unsloth\" "
            "full+offload.")
        .synonym(true, "full")
        .synonym(false, "none")
        .synonym("unsloth", "full+offload")
        .synonym(nullptr, "auto")
        .bare_flag()
        .alias("training", "activation_checkpointing")
        .alias("lora", "use_gradient_checkpointing")
        .suggested_for({"enable_activation_offloading", "offload_activations"})
        .on_resume(OnResume::free);
    options
        .add_choice("keep_inputs_in", training.keep_inputs_in,
                    {{"auto", KeptInputs::automatic}, {"same", KeptInputs::same}, {"fp8", KeptInputs::fp8}},
                    "In which type layers' inputs wait in host memory for the backward pass, where what is kept lies "
                    "there (+offload): the computation's own (same), or e4m3 with a scale for each token (fp8), in "
                    "half the bytes; what is made again from them differs, and gradients with it. auto takes fp8 only "
                    "where no other plan fits.")
        .on_resume(OnResume::told);
    options
        .add("max_memory_gib", training.max_memory_gib,
             "Most GiB of each GPU that the run plans for; with model.max_memory the smaller of the two. 0: what is "
             "free.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"memory_budget", "gpu_memory_limit", "memory_limit"})
        .on_resume(OnResume::free);
    options
        .add("deterministic", training.deterministic,
             "Bit-equal results from run to run on a GPU too, at some cost of speed; the CPU's always are.")
        .on_resume(OnResume::told);
}

/// Which evaluation is the best, and what follows from that.
void declare_best(OptionSet& options, TrainingOptions& training) {
    options
        .add("early_stopping_patience", training.early_stopping_patience,
             "End the run when so many evaluations in a row were not better than the best one by more than "
             "early_stopping_threshold; 0: never.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"early_stopping_steps", "patience"})
        .on_resume(OnResume::free);
    options
        .add("early_stopping_threshold", training.early_stopping_threshold,
             "By how much an evaluation must be better to count as such for early_stopping_patience.")
        .at_least(0)
        .synonym(nullptr, 0)
        .on_resume(OnResume::told);
    options
        .add("load_best_model_at_end", training.load_best_model_at_end,
             "Leave the adapter (or model) of the best evaluation in output_dir at the end, instead of the last "
             "step's. An evaluation that is the best so far then saves a checkpoint.")
        .on_resume(OnResume::free);
    options
        .add("metric_for_best_model", training.metric_for_best_model,
             "Value of an evaluation that says which is the best, with or without eval_: loss, token_accuracy, "
             "NAME_loss of data.eval_files, or a figure of preferences such as rewards/margins.")
        .value("NAME")
        .synonym(nullptr, "eval_loss")
        .synonym("", "eval_loss")
        .on_resume(OnResume::fixed);
    options
        .add("greater_is_better", training.greater_is_better,
             "Whether more of metric_for_best_model is better; null: of all metrics but those whose names end in "
             "loss.")
        .on_resume(OnResume::fixed);
}

/// Evaluation, checkpoints and what is reported.
void declare_saving(OptionSet& options, TrainingOptions& training) {
    options.add("eval_on_start", training.eval_on_start, "Evaluate before the first step too.")
        .on_resume(OnResume::free);
    options.add("eval_steps", training.eval_steps, "Evaluate every so many steps, and at the end; 0: only at the end.")
        .at_least(0)
        .synonym(nullptr, 0)
        .on_resume(OnResume::told);
    declare_best(options, training);
    options
        .add("save_steps", training.save_steps,
             "Save checkpoint-N, from which the run can be resumed, every so many steps, and at the end; 0: not by "
             "steps.")
        .at_least(0)
        .on_resume(OnResume::free);
    options
        .add("save_minutes", training.save_minutes,
             "Save checkpoint-N when this many minutes have passed since the last one; 0: not by time.")
        .at_least(0)
        .on_resume(OnResume::free);
    options
        .add("save_total_limit", training.save_total_limit,
             "How many checkpoint-N folders are kept, the newest ones and in any case that of the best evaluation; 0: "
             "all.")
        .at_least(0)
        .synonym(nullptr, 0)
        .on_resume(OnResume::free);
    options
        .add("save_grace_seconds", training.save_grace_seconds,
             "After SIGTERM, SIGINT or SIGHUP, a step that would take longer than this is dropped, and the state "
             "before it is "
             "saved.")
        .at_least(0)
        .on_resume(OnResume::free);
    options
        .add("overwrite_output_dir", training.overwrite_output_dir,
             "Start afresh in an output_dir that holds a run already; its checkpoints are removed.")
        .on_resume(OnResume::free);
    options.add("logging_steps", training.logging_steps, "A row of metrics every so many steps.")
        .at_least(1)
        .on_resume(OnResume::free);
    options
        .add("report_to", training.report_to,
             "Where metrics go besides logging.metrics_file: tensorboard (event files in logging.tensorboard_dir), "
             "prometheus (an endpoint, logging.metrics_port), html (report.html in output_dir, written anew while the "
             "run "
             "goes on), wandb (TensorBoard's files, and the line that uploads them).")
        .one_of({"tensorboard", "prometheus", "html", "wandb"})
        .synonym(nullptr, Json::array())
        .synonym("", Json::array())
        .synonym("none", Json::array())
        .synonym(Json::array({"none"}), Json::array())
        .synonym("tensorboard", Json::array({"tensorboard"}))
        .synonym("prometheus", Json::array({"prometheus"}))
        .synonym("html", Json::array({"html"}))
        .synonym("wandb", Json::array({"wandb"}))
        .on_resume(OnResume::free);
    options
        .add(
            "sample_prompts", training.sample_prompts,
            "Prompts, as `generate --file` reads them, that every evaluation answers into samples.jsonl in output_dir, "
            "always with the likeliest token; the run's page shows them.")
        .path("FILE")
        .on_resume(OnResume::free);
    options.add("sample_max_new_tokens", training.sample_max_new_tokens, "Most tokens of such an answer.")
        .at_least(1)
        .on_resume(OnResume::free);
    options
        .add("resume_from_checkpoint", training.resume_from_checkpoint,
             "auto: go on from output_dir's newest whole checkpoint, or start when there is none; true: go on, there "
             "must be one; or a "
             "checkpoint's folder.")
        .path("auto|true|DIR")
        .synonym(true, "true")
        .synonym(false, "false")
        .suggested_for({"resume"})
        .on_resume(OnResume::free);
}

void declare_optimizer(OptionSet& options, TrainingOptions& training) {
    options.add("weight_decay", training.weight_decay, "Decoupled weight decay.").at_least(0).on_resume(OnResume::told);
    options.add("max_grad_norm", training.max_grad_norm, "Clip the gradients' global norm to this; 0: no clipping.")
        .at_least(0)
        .suggested_for({"grad_clip", "clip_grad", "gradient_clip", "gradient_clipping"})
        .on_resume(OnResume::told);
    options
        .add("skip_on_spike", training.skip_on_spike,
             "Skip the update of a step whose loss or gradient norm is more than so many standard deviations above the "
             "mean of the last 128 steps (6 is usual; from the 33rd step on); 0: never.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"skip_spikes"})
        .on_resume(OnResume::told);
    options
        .add_choice("optim", training.optim,
                    {{"adamw_torch", Optimizer::adamw_torch}, {"adamw_8bit", Optimizer::adamw_8bit}},
                    "AdamW with 32-bit moments (adamw_torch) or block-wise 8-bit ones (adamw_8bit).")
        .synonym("adamw_torch_fused", "adamw_torch")
        .synonym("adamw_hf", "adamw_torch")
        .synonym("adamw_bnb_8bit", "adamw_8bit")
        .synonym("paged_adamw_8bit", "adamw_8bit", "taken as adamw_8bit: its states stay on the device")
        .synonym("paged_adamw_32bit", "adamw_torch", "taken as adamw_torch: its states stay on the device")
        .synonym("paged_adamw", "adamw_torch", "taken as adamw_torch: its states stay on the device")
        .suggested_for({"optimizer"})
        .on_resume(OnResume::fixed);
    options.add("adam_beta1", training.adam_beta1, "Decay of the first moment.")
        .at_least(0)
        .below(1)
        .on_resume(OnResume::told);
    options.add("adam_beta2", training.adam_beta2, "Decay of the second moment.")
        .at_least(0)
        .below(1)
        .on_resume(OnResume::told);
    options.add("adam_epsilon", training.adam_epsilon, "Added to the root of the second moment.")
        .above(0)
        .suggested_for({"adam_eps", "eps"})
        .on_resume(OnResume::told);
}

void declare_preference(OptionSet& options, PreferenceOptions& preference) {
    options.section("preference", "Preferences",
                    "What training.objective dpo, orpo and kto take. Names and formulas are TRL's.", OnResume::fixed);
    options.add_choice(
        "loss_type", preference.loss_type,
        {{"sigmoid", PreferenceLoss::sigmoid},
         {"hinge", PreferenceLoss::hinge},
         {"ipo", PreferenceLoss::ipo},
         {"robust", PreferenceLoss::robust},
         {"simpo", PreferenceLoss::simpo}},
        "How dpo makes a loss of a pair's margin; simpo compares means over tokens and needs no reference.");
    options.add("beta", preference.beta, "Factor on the difference between policy and reference (orpo: on the odds).")
        .above(0);
    options
        .add_choice("reference", preference.reference, {{"base", Reference::base}, {"initial", Reference::initial}},
                    "What preferences are measured against: the base without adapters, or the adapter as it was at the "
                    "start. Its log-probabilities are made once, before the first step.")
        .on_resume(OnResume::fixed);
    options.add("reference_free", preference.reference_free, "dpo without a reference, as if it preferred nothing.");
    options
        .add("cache_reference", preference.cache_reference,
             "Keep the reference's log-probabilities in data.cache_dir, by rows and base, for the next run.")
        .on_resume(OnResume::free);
    options
        .add(
            "share_prompt", preference.share_prompt,
            "Compute the prompt that two answers share once for both of them; with false each answer has its own copy.")
        .on_resume(OnResume::told);
    options
        .add("label_smoothing", preference.label_smoothing,
             "Share of pairs whose answers are taken for mixed up (loss_type sigmoid, robust, simpo).")
        .at_least(0)
        .below(0.5);
    options.add("simpo_gamma", preference.simpo_gamma, "Margin that loss_type simpo asks for.").at_least(0);
    options
        .add("rpo_alpha", preference.rpo_alpha,
             "Weight of the chosen answers' own loss, a mean over their tokens, beside dpo's; 0: none.")
        .at_least(0)
        .synonym(nullptr, 0);
    options.add("desirable_weight", preference.desirable_weight, "kto: weight of answers with a good verdict.")
        .at_least(0);
    options.add("undesirable_weight", preference.undesirable_weight, "kto: weight of answers with a bad verdict.")
        .at_least(0);
}

void declare_distill(OptionSet& options, DistillOptions& distill) {
    options.section("distill", "Distillation",
                    "What training.objective distill takes: a student learns what a teacher says of the rows' targets.",
                    OnResume::fixed);
    options
        .add("teacher", distill.teacher,
             "Model folder, or id on the hub, whose token ids mean what the student's mean; or a file that "
             "`unsloth-train score --top_k N` wrote of these rows with such a model.")
        .path("DIR|FILE")
        .suggested_for({"teacher_model", "teacher_model_name_or_path"})
        .on_resume(OnResume::told);
    options.add("teacher_adapter", distill.teacher_adapter, "PEFT adapter of the teacher.")
        .path("DIR")
        .on_resume(OnResume::told);
    options.add("teacher_load_in_4bit", distill.teacher_load_in_4bit,
                "Hold the teacher in NF4; with false it stays as its checkpoint is.");
    options
        .add_object(
            "teacher_device_map", distill.teacher_device_map,
            "Where the teacher lies, as model.device_map says it of the student. auto: on the GPU, or as much of "
            "it as fits beside the student.")
        .one_of({"auto", "sequential", "balanced", "balanced_low_0"})
        .synonym(nullptr, "auto")
        .synonym("cuda", "auto")
        .on_resume(OnResume::free);
    options.add_choice(
        "divergence", distill.divergence,
        {{"forward_kl", Divergence::forward_kl}, {"reverse_kl", Divergence::reverse_kl}, {"jsd", Divergence::jsd}},
        "How far the student is from the teacher: KL(teacher || student), KL(student || teacher), or "
        "the Jensen-Shannon divergence that jsd_beta says.");
    options
        .add("jsd_beta", distill.jsd_beta,
             "jsd: beta KL(teacher || M) + (1 - beta) KL(student || M), M = beta teacher + (1 - beta) student, as in "
             "TRL's GKD.")
        .above(0)
        .below(1);
    options
        .add("temperature", distill.temperature,
             "Divides the logits of both before they are compared; the divergence is multiplied by its square.")
        .above(0);
    options
        .add("alpha", distill.alpha,
             "Share of the loss that is the divergence; the rest is the cross-entropy of the labels.")
        .at_least(0)
        .at_most(1);
    options
        .add("top_k", distill.top_k,
             "Of a teacher's file, compare so many of the likeliest tokens at each position, and all others as one; 0: "
             "as many as the file has.")
        .at_least(0);
}

void declare_hardware(OptionSet& options, HardwareOptions& hardware) {
    options.section("hardware", "Hardware", "Where the run takes place.", OnResume::free);
    options.add("device", hardware.device, "auto (CUDA if there is one), cpu, cuda, or cuda:N.").value("DEVICE");
    options
        .add_choice(
            "weight_cache", hardware.weight_cache,
            {{"auto", WeightCache::automatic}, {"on", WeightCache::on}, {"off", WeightCache::off}},
            "Expand 4-bit weights to the compute type once, on a GPU, instead of a layer at a time in every step "
            "(the same results; 2 bytes a weight instead of 0.5); auto: when there is room.")
        .synonym(true, "on")
        .synonym(false, "off");
    options.add("offload_embedding", hardware.offload_embedding,
                "Leave the input embeddings in pinned host memory; a GPU reads the rows that it needs.");
    options
        .add("kernels", hardware.kernels,
             "auto: for each matrix product the kernel that measured fastest on this card; library: cuBLASLt's own "
             "choice for all of them, as on cards that were not measured (to compare with, when results look wrong); "
             "or a file that `unsloth-train tune` wrote on this card.")
        .path("auto|library|FILE")
        .on_resume(OnResume::told);
    options
        .add_object(
            "allocator", hardware.allocator,
            "How LibTorch's allocator takes a GPU's memory, instead of what PYTORCH_CUDA_ALLOC_CONF says: throughput, "
            "low_memory or long_context, or {\"backend\": \"native\", \"max_split_size_mb\": 512, "
            "\"expandable_segments\": true, \"roundup_power2_divisions\": 4, \"garbage_collection_threshold\": 0.8}, "
            "each optional.")
        .one_of({"throughput", "low_memory", "long_context"})
        .synonym(nullptr, Json::object());
    options.add(
        "cuda_graphs", hardware.cuda_graphs,
        "Record a micro-batch's work on the GPU and replay it when a micro-batch of the same shape comes again, so "
        "that small ones do not wait for the host.");
}

void declare_distributed(OptionSet& options, DistributedOptions& distributed) {
    options.section(
        "distributed", "Distributed",
        "Several processes, a GPU each, that train one model (unsloth-train launch, torchrun, srun, mpirun).",
        OnResume::free);
    options
        .add("tp_size", distributed.tp_size,
             "Ranks that share each layer's products (tensor parallel). Of the processes, what tp_size, pp_size and "
             "cp_size leave is data parallel.")
        .at_least(1);
    options.add("pp_size", distributed.pp_size, "Stages that the layers are cut into (pipeline parallel).").at_least(1);
    options.add("cp_size", distributed.cp_size, "Ranks that share a row's tokens (context parallel).").at_least(1);
    options
        .add("zero_stage", distributed.zero_stage,
             "What data-parallel ranks hold a share of instead of a copy: 1 the optimizer's states, 2 the gradients "
             "too, 3 the trained parameters too, and the frozen base; 0: nothing.")
        .at_least(0)
        .at_most(3);
    options
        .add_choice("offload_optimizer", distributed.offload_optimizer,
                    {{"none", OptimizerPlace::device}, {"cpu", OptimizerPlace::cpu}},
                    "cpu: the optimizer's moments and the fp32 parameters lie in host memory and are updated there.")
        .synonym(nullptr, "none")
        .synonym(false, "none");
    options.add_choice(
        "pipeline_schedule", distributed.pipeline_schedule,
        {{"1f1b", PipelineSchedule::one_forward_one_backward}, {"interleaved", PipelineSchedule::interleaved}},
        "The order in which the stages of pp_size take micro-batches.");
    options
        .add("pipeline_micro_batches", distributed.pipeline_micro_batches,
             "Micro-batches under way at once in the stages of pp_size; 0: as many as stages.")
        .at_least(0);
    options
        .add("ddp_timeout", distributed.ddp_timeout,
             "Seconds that ranks wait for each other before they stop with an error.")
        .at_least(1)
        .alias("training", "ddp_timeout");
    options
        .add("ddp_bucket_cap_mb", distributed.ddp_bucket_cap_mb,
             "MiB of gradients that ranks sum at a time, beside the backward pass; 0: all together after it; -1: 0 "
             "within one machine, 25 between several.")
        .at_least(-1)
        .alias("training", "ddp_bucket_cap_mb")
        .synonym(nullptr, -1);
    options.add("nccl", distributed.nccl,
                "Settings of NCCL as its environment variables name them, with or without NCCL_: {\"SOCKET_IFNAME\": "
                "\"eth0\", \"DEBUG\": \"WARN\"}. They win "
                "over the environment.");
}

void declare_logging(OptionSet& options, LoggingOptions& logging) {
    options.section("logging", "Logging", "What is told, and where.", OnResume::free);
    options.add("level", logging.level, "Least level that is printed; debug also shows the details of internal errors.")
        .one_of(log_levels())
        .value("LEVEL")
        .alias("logging", "log_level")
        .shorthand("logging", "quiet", "warning")
        .suggested_for({"verbosity", "verbose"});
    options
        .add("metrics_file", logging.metrics_file,
             "JSON Lines file of metrics; relative paths lie in output_dir; empty: none.")
        .path("FILE");
    options.add_choice(
        "progress", logging.progress, {{"auto", ProgressStyle::automatic}, {"json", ProgressStyle::json}},
        "How far a run is. auto: a bar on a terminal, log lines elsewhere; json: an object a logged step, "
        "evaluation and ending on standard output, for programs.");
    options
        .add("tensorboard_dir", logging.tensorboard_dir,
             "Folder of TensorBoard's event files; relative paths lie in output_dir.")
        .path("DIR")
        .alias("training", "logging_dir");
    options.add("layer_norms", logging.layer_norms,
                "Rows of metrics have the norm of each layer's gradient too (grad_norm/layers.0, …), before clipping.");
    options
        .add("metrics_port", logging.metrics_port,
             "Port of http://metrics_address:PORT/metrics for Prometheus, on rank 0; 0: none, or 9400 where "
             "training.report_to has prometheus.")
        .at_least(0)
        .at_most(65535);
    options
        .add("metrics_address", logging.metrics_address,
             "Where the endpoint listens; 0.0.0.0: for everybody who reaches this machine.")
        .value("ADDRESS");
    options
        .add(
            "profile", logging.profile,
            "Time the third step's operators: a table in the log, a Chrome trace (Perfetto) in this file; empty: none.")
        .path("FILE");
}

}  // namespace

std::vector<std::string> log_levels() {
    return {"debug", "info", "warning", "error", "off"};
}

std::vector<std::pair<std::string, spec::DType>> compute_types() {
    return {{"float32", spec::DType::f32}, {"bfloat16", spec::DType::bf16}, {"float16", spec::DType::f16}};
}

void declare_options(OptionSet& options, Config& config) {
    declare_model(options, config.model);
    declare_lora(options, config.lora);
    declare_data(options, config.data);
    declare_training(options, config.training);
    declare_passes(options, config.training);
    declare_saving(options, config.training);
    declare_preference(options, config.preference);
    declare_distill(options, config.distill);
    declare_hardware(options, config.hardware);
    declare_distributed(options, config.distributed);
    declare_logging(options, config.logging);
}

}  // namespace unsloth::config
