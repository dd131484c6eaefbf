// What reads and writes model files takes: inspect, init, export, merge, quantize, prune.
#include "app/commands/declarations.h"
#include "unsloth/config/option_table.h"

namespace unsloth::app {
namespace {

Option& weight_type_names(Option& option) {
    return option.synonym("bfloat16", "bf16").synonym("float16", "fp16").synonym("float32", "fp32");
}

/// Under the names that configurations have; `old` is the command's own one.
Option& add_model(OptionSet& options, std::string& field, const char* old, std::string help) {
    return options.add("model.path", field, std::move(help)).path("PATH").alias("", "path").alias("", old);
}

Option& add_adapter(OptionSet& options, std::string& field, std::string help) {
    return options.add("model.adapter_name_or_path", field, std::move(help))
        .path("DIR")
        .alias("", "adapter_name_or_path")
        .alias("", "adapter");
}

void declare_shard_size(OptionSet& options, std::string& field) {
    options.add("max_shard_size", field, "Largest file of weights: bytes, or with a unit (MB, GB, MiB, GiB).")
        .value("SIZE");
}

}  // namespace

void declare_inspect(OptionSet& options, CommandLine& line) {
    options.add("path", line.inspect.path, "Folder of a model or an adapter, or a .gguf file.")
        .path("DIR|FILE")
        .argument()
        .must_be_given();
    options.add("json", line.inspect.json, "Print the findings as JSON.");
}

void declare_init(OptionSet& options, CommandLine& line) {
    InitRequest& init = line.init;
    options.add("shape", init.shape, "Shape of a known model, such as llama-3.1-8b.").value("NAME");
    // The main name is not "config": that is a configuration of this program everywhere else.
    options.add("model_config", init.config_file, "Hugging Face config.json that gives the shape, instead of --shape.")
        .path("FILE")
        .alias("", "config")
        .suggested_for({"config_file"});
    options.add("layers", init.layers, "Layers, instead of as many as the shape has; 0: those of the shape.")
        .at_least(0);
    options.add("out", init.out, "Folder to write.").path("DIR").must_be_given();
    options.add_choice(
        "quantize", init.quantize,
        {{"none", InitQuantize::none}, {"nf4", InitQuantize::nf4}, {"mxfp4", InitQuantize::mxfp4}},
        "nf4: projections in bitsandbytes' NF4 with double quantisation, their codes drawn as they are. mxfp4: experts "
        "of gpt-oss in MXFP4.");
    options.add("tokenizer", init.tokenizer, "Folder whose tokenizer files are copied to the output.").path("DIR");
    options.add("seed", init.seed, "Seed of the random weights.").at_least(0);
    options.add_choice("dtype", init.dtype, config::compute_types(), "Type of the weights that are not quantised.");
}

void declare_export(OptionSet& options, CommandLine& line) {
    ExportRequest& request = line.exporting;
    options
        .add_choice("format", request.format, {{"gguf", ExportFormat::gguf}},
                    "gguf: a file for llama.cpp and what builds on it.")
        .value("gguf")
        .argument()
        .must_be_given();
    add_model(options, request.model, "model",
              "Model to export: 16/32-bit, or 4-bit, which is dequantised. With an adapter: its base, of which "
              "config.json alone is read; empty: the one that the adapter names.")
        .alias("", "base")
        .suggested_for({"model_path", "merged", "base_model"});
    add_adapter(options, request.adapter, "PEFT adapter to export, alone.").suggested_for({"lora"});
    options.add("out", request.out, "File to write, which must not exist.")
        .output("FILE")
        .must_be_given()
        .suggested_for({"output", "outfile"});
    options
        .add_choice(
            "type", request.type,
            {{"auto", ExportType::automatic},
             {"f32", ExportType::f32},
             {"f16", ExportType::f16},
             {"bf16", ExportType::bf16},
             {"q8_0", ExportType::q8_0},
             {"q4_0", ExportType::q4_0},
             {"mxfp4", ExportType::mxfp4},
             {"q4_k_m", ExportType::q4_k_m},
             {"q5_k_m", ExportType::q5_k_m},
             {"q6_k", ExportType::q6_k}},
            "Type of the weights, mixed as llama-quantize mixes it; auto: the checkpoint's own. After `merge --grid` "
            "auto is that grid: blocks stand for exactly the same values, and embeddings and lm_head stay in the "
            "checkpoint's type. q4_k means q4_k_m. Adapters: f32, f16, bf16 or q8_0.")
        .synonym("q4_k", "q4_k_m")
        .synonym("q5_k", "q5_k_m")
        .suggested_for({"outtype", "quantize", "quantization_method"});
    options
        .add("ignore_serve_grid", request.ignore_serve_grid,
             "Export an adapter that was trained with lora.serve_grid, which llama.cpp adds to weights without "
             "rounding.")
        .alias("model", "ignore_serve_grid");
    options.add("tokenizer", request.tokenizer, "Folder of the tokenizer; empty: the model's.").path("DIR");
    options
        .add("pre", request.pre,
             "llama.cpp's name of the tokenizer's way of splitting (tokenizer.ggml.pre), where it is not found.")
        .value("NAME");
    options
        .add("threads", request.threads,
             "Threads that quantise; 0: as many as the machine has. The file does not depend on it.")
        .at_least(0);
}

void declare_merge(OptionSet& options, CommandLine& line) {
    MergeRequest& merge = line.merge;
    add_adapter(options, merge.adapter, "Folder of the adapter.").must_be_given();
    add_model(options, merge.base, "base",
              "Model to merge into, in 4, 8 or 16/32 bit; empty: the one that the adapter's config names.")
        .suggested_for({"model"});
    options.add("out", merge.out, "Folder to make; it must not exist, or be empty.").path("DIR").must_be_given();
    weight_type_names(options.add_choice("dtype", merge.dtype,
                                         {{"auto", spec::WeightType::automatic},
                                          {"bf16", spec::WeightType::bf16},
                                          {"fp16", spec::WeightType::f16},
                                          {"fp32", spec::WeightType::f32},
                                          {"nf4", spec::WeightType::nf4}},
                                         "Type of the merged weights. auto: the 16- or 32-bit type that the base's "
                                         "config.json names; nf4: 4 bit as bitsandbytes stores it."));
    options.add_choice("grid", merge.grid,
                       {{"auto", std::nullopt},
                        {"none", spec::ServeGrid::none},
                        {"nf4", spec::ServeGrid::nf4},
                        {"q8_0", spec::ServeGrid::q8_0},
                        {"q4_0", spec::ServeGrid::q4_0},
                        {"mxfp4", spec::ServeGrid::mxfp4},
                        {"fp8", spec::ServeGrid::fp8}},
                       "Values that the projections are rounded to, adapted or not. auto: those that the adapter was "
                       "trained through (lora.serve_grid). nf4 is written as bitsandbytes' codes. Values of the others "
                       "are written exactly, in bf16 (mxfp4) or fp32, and `export gguf` writes q8_0, q4_0 and mxfp4 "
                       "from there without another change.");
    options
        .add("load_in_4bit", merge.load_in_4bit,
             "Merge into the NF4 values that training with model.load_in_4bit made of a 16/32-bit base, instead of "
             "the base's own. Where neither this nor precision is given, the run_config.json in the adapter's folder "
             "decides.")
        .alias("model", "load_in_4bit");
    options
        .add("precision", merge.precision,
             "Merge into the values that training with this model.precision made of the base.")
        .alias("model", "precision");
    declare_shard_size(options, merge.max_shard_size);
    options
        .add("verify", merge.verify,
             "Text, or file of rows, on which the merged model's logits are compared with those of base and adapter; "
             "empty: a text and token rows of the program's own.")
        .path("TEXT|FILE");
    options.add("no_verify", merge.no_verify, "Do not compare the logits.").not_with("verify");
    options
        .add("tolerance", merge.tolerance,
             "Largest relative difference of the logits; none: 1e-4 for fp32, 1e-2 for fp16, 5e-2 for bf16, 0.7 for "
             "nf4 and other grids. For the grid that the adapter was trained through it is 1e-4.")
        .at_least(0);
    options
        .add("device", merge.device,
             "Where the logits are computed, in float32: auto, cpu, cuda or cuda:N. On the CPU a layer at a time.")
        .value("DEVICE")
        .alias("hardware", "device");
}

void declare_quantize(OptionSet& options, CommandLine& line) {
    QuantizeRequest& quantize = line.quantize;
    add_model(options, quantize.model, "model", "Model in 16 or 32 bit.").must_be_given().suggested_for({"base"});
    options.add("out", quantize.out, "Folder to make; it must not exist, or be empty.").path("DIR").must_be_given();
    options
        .add_choice("type", quantize.type,
                    {{"nf4", spec::WeightType::nf4}, {"fp4", spec::WeightType::fp4}, {"int8", spec::WeightType::int8}},
                    "nf4 and fp4: 4 bit with double quantisation; int8: 8 bit with a scale for each row (LLM.int8). As "
                    "bitsandbytes stores them.")
        .known_elsewhere({"gptq", "awq", "aqlm", "hqq", "eetq", "fp8"}, "nf4 and int8 need no rows to be made of.")
        .suggested_for({"dtype"});
    options.add("precision", quantize.precision,
                "Types of single modules, as in model.precision, whose default holds before --type. The log names "
                "what transformers cannot load of the result.");
    declare_shard_size(options, quantize.max_shard_size);
}

void declare_prune(OptionSet& options, CommandLine& line) {
    PruneRequest& prune = line.prune;
    options.add("out", prune.out, "Folder to make; it must not exist, or be empty.").path("DIR").must_be_given();
    options
        .add("calibration", prune.calibration,
             "Rows on which layers, neurons, experts and inputs are measured; a few hundred like those that the model "
             "is for.")
        .path("FILE")
        .must_be_given()
        .suggested_for({"calibration_file", "dataset", "train_file"});
    options
        .add("layers", prune.layers, "Layers that remain, from 1 to one less than the model has; without it, all do.")
        .at_least(1)
        .suggested_for({"num_layers", "num_hidden_layers", "drop_layers"});
    options
        .add_choice("method", prune.method,
                    {{"block_influence", PruneMethod::block_influence},
                     {"last", PruneMethod::last},
                     {"scan", PruneMethod::scan},
                     {"reap", PruneMethod::reap}},
                    "How layers or experts are chosen. block_influence: those layers go whose output is most like "
                    "their input. last: the deepest ones go, except the final one. scan: one after another, the layer "
                    "without which the loss is lowest; a removal takes as many passes over the file as there are "
                    "layers. reap, the only way for experts: those go whose weighted output is smallest.")
        .synonym("bi", "block_influence")
        .only_with("layers")
        .when_not({"reap"})
        .needs({"experts"})
        .when({"reap"});
    options
        .add("intermediate", prune.intermediate,
             "MLP neurons that remain in each layer (intermediate_size), ranked by activation and outgoing weights. "
             "A multiple of 256 suits every loader. Without it, all remain.")
        .at_least(1)
        .suggested_for({"intermediate_size", "ffn_hidden_size"});
    options
        .add_choice("wanda", prune.wanda,
                    {{"none", formats::Sparsity::none},
                     {"0.5", formats::Sparsity::half},
                     {"2:4", formats::Sparsity::two_of_four}},
                    "Set half of each row's weights to zero, or two of each four, by |weight| times the norm of its "
                    "input. The folder stays as large, and no loader runs it faster.")
        .not_with("layers")
        .not_with("intermediate")
        .or_else("Prune the result in a second run.");
    options
        .add("experts", prune.experts,
             "Experts of each layer that remain, of a model that has experts. At least as many as a token passes.")
        .at_least(1)
        .suggested_for({"num_experts", "num_local_experts"})
        .not_with("layers")
        .or_else("Prune the result in a second run.")
        .not_with("intermediate")
        .or_else("Neurons of experts are not ranked.")
        .not_with("wanda")
        .or_else("--wanda is for models without experts.");
    declare_shard_size(options, prune.max_shard_size);
}

}  // namespace unsloth::app
