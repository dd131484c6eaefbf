#include "config/options/named_value.h"
#include "config/options/sections.h"

#include "unsloth/config/auto_values.h"
#include "unsloth/config/option_table.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::config {
namespace {

std::vector<std::string> projection_list() {
    std::vector<std::string> names;
    for (int i = 0; i < spec::projection_count; ++i)
        if (const auto p = static_cast<spec::Projection>(i); !spec::is_of_experts(p) && !spec::has_no_adapter(p))
            names.emplace_back(name_of(p));
    return names;
}
/// Of a model with qkv_proj or gate_up_proj that is all projections, too (spec::for_model).
std::vector<std::string> all_projections() {
    return {spec::projection_names.begin(), spec::projection_names.begin() + spec::separate_projections};
}

/// The base's weights.
void declare_base(OptionSet& options, ModelOptions& model) {
    options
        .add("path", model.path,
             "A Hugging Face checkpoint folder, a .safetensors file, or a Hugging Face hub id (ORG/NAME, "
             "ORG/NAME@REVISION). A hub model is downloaded into the hub cache.")
        .path("PATH")
        .most_used("Model: a folder or a hub id")
        .suggested_for({"model", "model_name", "model_name_or_path", "base_model", "model_path", "name"})
        .on_resume(OnResume::logged);
    options
        .add("load_in_4bit", model.load_in_4bit,
             "Hold the base in NF4: 16 and 32-bit weights are quantised while loading. With false a 16-bit checkpoint "
             "stays 16-bit. A checkpoint that is stored in 4 or 8 bit stays as it is either way.")
        .most_used("Hold the base in NF4")
        .suggested_for({"load_4bit", "use_4bit", "qlora"})
        .not_with("lora.finetuning_type", {"full"})
        .when({true})
        .because("full training updates the weights that it would freeze")
        .or_else("Set model.load_in_4bit to false, or lora.finetuning_type to lora.")
        .not_with("model.load_in_8bit", {true})
        .when({true})
        .default_with("lora.finetuning_type", {"full"}, false)
        .default_with("model.load_in_8bit", {true}, false)
        .on_resume(OnResume::immutable);
    options
        .add("load_in_8bit", model.load_in_8bit,
             "Hold the base in 8 bit with a scale for each row (LLM.int8), instead of load_in_4bit: 16 and 32-bit "
             "weights are quantised while loading. Products have the weights' values in dtype.")
        .not_with("lora.finetuning_type", {"full"})
        .because("full training updates the weights that it would freeze")
        .on_resume(OnResume::immutable);
    options
        .add(
            "precision", model.precision,
            "Types of single modules' frozen weights, from any checkpoint: nf4, fp4, int8, bf16, fp16 or fp32, as in "
            "{\"default\": \"nf4\", \"model.layers.0\": \"bf16\", \"model.layers.1-3.mlp.down_proj\": \"int8\", "
            "\"lm_head\": \"int8\"}. default is for the layers' projections, instead of load_in_4bit and load_in_8bit; "
            "the longest name that fits a module holds. Embeddings and lm_head stay as they are unless they are "
            "named.")
        .not_with("lora.finetuning_type", {"full"})
        .because("full training updates the weights that it would freeze")
        .on_resume(OnResume::immutable);
}

/// What it computes in.
void declare_types(OptionSet& options, ModelOptions& model) {
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
        .on_resume(OnResume::logged);
    options
        .add_choice(
            "compute_dtype", model.compute_dtype,
            {{"auto", spec::CodedProducts::none},
             {"fp8_backward", spec::CodedProducts::dx},
             {"int8", spec::CodedProducts::int8},
             {"fp8_both", spec::CodedProducts::both}},
            "Number format of the frozen base's matmuls in a training run. auto: dtype. fp8_backward (or fp8): "
            "activation gradients in e4m3, with a scale for each row of activations and weights. With as many "
            "sequences per pass, losses are those of auto. It needs bfloat16 and one byte more per weight. int8: both "
            "passes in int8, with a scale for each row and 256 columns of activations and each row of weights. It "
            "takes little more than half the time, and 2 bytes per weight. Gradients are equally near fp32's. "
            "fp8_both: both passes in e4m3. It is a little faster yet, with gradients three times as far "
            "from fp32's. Adapters and attention stay in dtype. So does an lm_head that is trained or whose rows are "
            "no multiple of 16, and with int8 its input gradients. fp8 needs an H100 or H200.")
        .synonym("fp8", "fp8_backward",
                 "taken as fp8_backward; before 2026-11-24 it meant fp8_both, whose forward matmuls are in 8 bit too")
        .not_with("lora.finetuning_type", {"full"})
        .because("it is for a frozen base")
        .error("option.unsupported")
        .not_with("lora.use_dora", {true})
        .when({"fp8_both", "int8"})
        .because(cat("it ", why_not_dora(spec::CodedProducts::both)))
        .error("option.unsupported")
        .not_with("lora.use_dora", {true})
        .when({"fp8_backward"})
        .because(cat("it ", why_not_dora(spec::CodedProducts::dx)))
        .error("option.unsupported")
        .on_resume(OnResume::logged);
}

/// An adapter to continue from, and the positions.
void declare_lengths(OptionSet& options, ModelOptions& model) {
    options
        .add("adapter_name_or_path", model.adapter_name_or_path,
             "PEFT adapter folder, or id on the hub, to continue from. Its own configuration gives r, alpha, patterns "
             "and modules; a lora "
             "option that says otherwise is an error.")
        .path("DIR")
        .suggested_for({"adapter", "adapter_path", "lora_path"})
        .not_with("lora.finetuning_type", {"full"})
        .or_else("Train the adapter with lora.finetuning_type lora, or remove it.")
        .on_resume(OnResume::logged);
    options
        .add(
            "ignore_serve_grid", model.ignore_serve_grid,
            "Use an adapter that was trained with lora.serve_grid without rounding. It then adds to other weights than "
            "it was trained through.")
        .on_resume(OnResume::immutable);
    options
        .add("max_seq_length", model.max_seq_length,
             "Longest sequence in tokens; data.overflow_strategy handles longer ones. null or 0: as many as the model "
             "has positions.")
        .most_used("Longest example in tokens")
        .at_least(0)
        .at_most(1e9)
        .synonym(nullptr, 0)
        .alias("model", "max_length")
        .alias("training", "max_length")
        .alias("training", "max_seq_length")
        .suggested_for({"cutoff_len", "seq_len", "seq_length", "context_length", "model_max_length", "sequence_len",
                        "max_seq_len", "max_len"})
        .on_resume(OnResume::immutable);
    options
        .add_object(
            "rope_scaling", model.rope_scaling,
            "How positions are scaled, instead of what config.json says, in Hugging Face's words: {\"rope_type\": "
            "\"linear\", \"factor\": 4.0}; rope_type linear, dynamic, yarn, llama3, longrope or default. It is written "
            "into adapter_config.json and into a merged model's config.json. A max_seq_length beyond the model's "
            "positions needs it.")
        .synonym(nullptr, Json::object())
        .alias("training", "rope_scaling")
        .on_resume(OnResume::immutable);
}

/// Where it is held.
void declare_places(OptionSet& options, ModelOptions& model) {
    declare_device_map(options.add_object(
        "device_map", model.device_map,
        "Device of each part of the frozen model. It changes no bit of the results, except for small matmuls of layers "
        "on disk. auto: on the GPU. If the GPU is too small even with gradient_checkpointing full+offload, the last "
        "layers are in host memory, then on disk, and are prefetched. For several GPUs: sequential (each GPU is filled "
        "in turn), balanced (by time) or balanced_low_0 (less on the first). These, and objects that name several "
        "GPUs, start one process per GPU with consecutive layers (distributed.pp_size). 0, cuda and cuda:0 put the "
        "whole model on the GPU, {\"\": 0}, as in Hugging Face. An object names modules: {\"model.embed_tokens\": "
        "\"cpu\", \"model.layers.0-15\": 0, \"model.layers.16-31\": \"cpu\", \"lm_head\": 0}. The longest name that "
        "matches a module applies."));
    options
        .add("offload_folder", model.offload_folder,
             "Folder for weights that device_map puts on disk and that are quantized while loading. They are in a file "
             "that is removed when the run ends. Weights of a 4-bit checkpoint are read in place and need no folder.")
        .path("DIR")
        .on_resume(OnResume::mutable_);
    options
        .add("max_memory", model.max_memory,
             "Most memory that a run plans for, by device: {\"0\": \"12GiB\", \"cpu\": \"64GiB\"} (a GPU's number, "
             "and host memory). Without it, what is free: of host memory 95 % of what is available and the control "
             "group allows.")
        .on_resume(OnResume::mutable_);
    options
        .add("special_tokens", model.special_tokens,
             "Tokens of the vocabulary that take the place of the tokenizer's own in a role: {\"eos_token\": "
             "\"<|im_end|>\"}; bos_token, eos_token, pad_token or unk_token. Examples, templates and the saved "
             "tokenizer and generation_config.json have them.")
        .synonym(nullptr, Json::object())
        .suggested_for(
            {"additional_special_tokens", "add_tokens", "added_tokens", "new_special_tokens", "unk_token", "bos_token"})
        .on_resume(OnResume::immutable);
}

}  // namespace

void declare_model(OptionSet& options, ModelOptions& model) {
    options.section("model", "Model", "The frozen base model, and an adapter to continue from.");
    declare_base(options, model);
    declare_types(options, model);
    declare_lengths(options, model);
    declare_places(options, model);
}

void declare_device_map(Option& map) {
    const Json one_gpu = {{"", 0}};  // what Hugging Face means by any of these
    map.one_of({"auto", "sequential", "balanced", "balanced_low_0"})
        .synonym(nullptr, "auto")
        .on_resume(OnResume::mutable_);
    for (const Json& written : {Json(0), Json("0"), Json("cuda"), Json("cuda:0")}) map.synonym(written, one_gpu);
    map.refused_with(
        "All of it on one GPU is 0, cuda or cuda:0; on another GPU, --hardware.device cuda:1; on the CPU, "
        "--hardware.device cpu; in host memory for a GPU, '{\"model.layers\": \"cpu\", \"\": 0}'.");
}

/// Adapters are folded into the weights of one device, which passes read in the compute type.
void declare_serve_grid(OptionSet& options, LoraOptions& lora) {
    options
        .add_choice("serve_grid", lora.serve_grid,
                    {{"none", spec::ServeGrid::none},
                     {"nf4", spec::ServeGrid::nf4},
                     {"q8_0", spec::ServeGrid::q8_0},
                     {"q4_0", spec::ServeGrid::q4_0},
                     {"mxfp4", spec::ServeGrid::mxfp4},
                     {"fp8", spec::ServeGrid::fp8}},
                    "Number format of the merged model that will be served. Passes compute with the base and its "
                    "adapters rounded to it, and gradients go straight through the rounding. merge --grid then writes "
                    "exactly these weights. nf4: bitsandbytes' with double quantization. q8_0, q4_0: of GGUF files. "
                    "mxfp4: E2M1 with a power of two for each 32 values of a row. fp8: e4m3 with a scale for each "
                    "output. The adapter is marked, and is of use with this rounding alone.")
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters")
        .not_with("lora.use_dora", {true})
        .because("magnitudes scale outputs after the matmul, and have no place in rounded weights")
        .error("option.unsupported")
        .not_with("lora.lora_dropout")
        .because("an adapter within the weights has no input of its own to drop from")
        .error("option.unsupported")
        .not_with("lora.target_parameters")
        .because("experts' adapters are not folded into weights")
        .error("option.unsupported")
        .not_with("model.compute_dtype")
        .because("8-bit matmuls read codes that are made once")
        .error("option.unsupported")
        .not_with("hardware.dequantized_weights", {"on"})
        .because("folded weights change with each step")
        .error("option.unsupported")
        .not_with("training.objective", {"grpo"})
        .because("each sampled token would round all weights again")
        .error("option.unsupported")
        .not_with("distributed.tp_size")
        .because("blocks of the grid go over the parts of a matrix")
        .error("parallel.unsupported")
        .not_with("distributed.pp_size")
        .because("it is not tested with stages")
        .error("parallel.unsupported")
        .not_with("distributed.zero_stage", {3})
        .because("passes there read adapters in model.dtype, and merging reads them in float32")
        .error("parallel.unsupported")
        .not_with("distributed.offload_optimizer")
        .because("passes there read adapters in model.dtype, and merging reads them in float32")
        .error("parallel.unsupported");
}

namespace {

void declare_adapters(OptionSet& options, LoraOptions& lora) {
    options.add_choice("finetuning_type", lora.finetuning_type,
                       {{"lora", FinetuningType::lora}, {"full", FinetuningType::full}},
                       "lora trains adapters on a frozen base; full trains all weights of a 16 or 32-bit model.");
    named_value(options
                    .add("r", lora.r,
                         "Rank of the adapters. auto: the least of 8 to 256 with which they have as many parameters as "
                         "the rows have targets. The log tells the reason.")
                    .most_used("Rank of the adapters")
                    .at_least(1)
                    .at_most(1e6)
                    .suggested_for({"rank", "lora_r", "lora_rank"})
                    .unused_with("lora.finetuning_type", {"full"}),
                "auto", auto_rank);
    options.add("lora_alpha", lora.lora_alpha, "The adapters' product is scaled by lora_alpha / r.")
        .most_used("Their scale is lora_alpha / r")
        .above(0)
        .at_most(1e6)
        .suggested_for({"alpha"})
        .unused_with("lora.finetuning_type", {"full"});
    options.add("lora_dropout", lora.lora_dropout, "Probability that an element of an adapter's input is dropped.")
        .at_least(0)
        .below(1)
        .suggested_for({"dropout"})
        .unused_with("lora.finetuning_type", {"full"})
        .not_with("training.objective", {"grpo"})
        .because("the sampler has none, and its probabilities would differ from the trained ones");
    options.add("use_rslora", lora.use_rslora, "Scale by lora_alpha / sqrt(r) instead of lora_alpha / r.")
        .unused_with("lora.finetuning_type", {"full"});
    options
        .add("use_dora", lora.use_dora,
             "DoRA: each output of an adapted projection gets a trained magnitude, and base and adapter together "
             "give the direction alone.")
        .unused_with("lora.finetuning_type", {"full"});
    options
        .add("vision", lora.vision,
             "Adapters also in the vision tower of Llama 3.2 Vision, Qwen2.5-VL and Qwen3-VL: on every linear of its "
             "blocks, and of its mergers or projector.")
        .suggested_for({"finetune_vision_layers", "train_vision"})
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters")
        .not_with("lora.use_dora", {true})
        .because("the tower's adapters have no magnitudes");
}

void declare_adapted_modules(OptionSet& options, LoraOptions& lora) {
    options
        .add("target_modules", lora.target_modules,
             "Projections that get an adapter. In a model of experts only attention's have one by default.")
        .one_of(projection_list())
        .synonym("all-linear", all_projections())
        .synonym(Json::array({"all-linear"}), all_projections())
        .synonym(nullptr, all_projections())
        .suggested_for({"lora_target", "lora_target_modules", "target"})
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters");
    options
        .add("target_parameters", lora.target_parameters,
             "Tensors of experts that get an adapter for each expert: mlp.experts.gate_up_proj and "
             "mlp.experts.down_proj, or ends of their paths.")
        .synonym(nullptr, Json::array())
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters");
    options.add("modules_to_save", lora.modules_to_save, "Modules trained as a whole and saved with the adapters.")
        .one_of({"embed_tokens", "lm_head"})
        .synonym(nullptr, Json::array())
        .suggested_for({"additional_target"})
        .not_with("lora.finetuning_type", {"full"})
        .because("full training updates every module");
    options
        .add("rank_pattern", lora.rank_pattern,
             "r for modules whose path matches `(.*\\.)?(key)$`, a regular expression; the first match wins.")
        .at_least(1)
        .synonym(nullptr, Json::object())
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters");
    options.add("alpha_pattern", lora.alpha_pattern, "lora_alpha by module, as in rank_pattern.")
        .above(0)
        .synonym(nullptr, Json::object())
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters");
    declare_serve_grid(options, lora);
}

/// Which layers have adapters, and LoRA+.
void declare_adapter_rates(OptionSet& options, LoraOptions& lora) {
    options.add("layers_to_transform", lora.layers_to_transform, "Layers that get adapters, counted from 0; null: all.")
        .at_least(0)
        .not_with("lora.finetuning_type", {"full"})
        .because("full training has no adapters");
    options
        .add(
            "loraplus_lr_ratio", lora.loraplus_lr_ratio,
            "LoRA+: the learning rate of the adapters' B is this many times that of A (16 is usual); 0: both have one.")
        .at_least(0)
        .at_most(1e6)
        .alias("training", "loraplus_lr_ratio")
        .synonym(nullptr, 0)
        .unused_with("lora.finetuning_type", {"full"})
        .on_resume(OnResume::logged);
    options
        .add("loraplus_lr_embedding", lora.loraplus_lr_embedding,
             "Learning rate of embed_tokens, where modules_to_save trains it; null: that of the adapters.")
        .at_least(0)
        .at_most(1)
        .alias("training", "loraplus_lr_embedding")
        .unused_with("lora.finetuning_type", {"full"})
        .not_with("training.learning_rate", {0})
        .because("it scales that rate")
        .on_resume(OnResume::logged);
}

}  // namespace

void declare_lora(OptionSet& options, LoraOptions& lora) {
    options.section("lora", "LoRA", "Which weights are trained. Names and meaning are PEFT's.", OnResume::immutable);
    declare_adapters(options, lora);
    declare_adapted_modules(options, lora);
    declare_adapter_rates(options, lora);
}

}  // namespace unsloth::config
