#include "unsloth/formats/folder_contents.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// The first few of many.
std::string listed(const Names& names) {
    constexpr std::size_t shown = 5;
    std::string text;
    for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) text += cat(i == 0 ? "" : ", ", names[i]);
    return names.size() <= shown ? text : cat(text, ", and ", names.size() - shown, " more");
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> known) {
    return std::find(known.begin(), known.end(), name) != known.end();
}

bool ends_with_one_of(std::string_view name, std::initializer_list<std::string_view> endings) {
    return std::any_of(endings.begin(), endings.end(), [&](std::string_view end) { return name.ends_with(end); });
}

/// PREFIX-00001-of-00002.safetensors
bool is_shard(std::string_view name) {
    return name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

/// What a trainer saves to resume, which is not weights.
bool is_training_state(std::string_view name) {
    return is_one_of(name, {"optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "training_args.bin"}) ||
           name.starts_with("rng_state");
}

bool is_pickle(std::string_view name) {
    return ends_with_one_of(name, {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) && !is_training_state(name);
}

bool is_distributed_state(std::string_view name) {
    return name.starts_with("global_step") || name.starts_with("pytorch_model_fsdp_") || name.ends_with(".distcp");
}

bool is_meta_form(std::string_view name) {
    return name.starts_with("consolidated") || is_one_of(name, {"original/", "params.json"});
}

bool is_adapter(std::string_view name) {
    return name == "adapter_config.json" || name.starts_with("adapter_model.");
}

bool is_model(std::string_view name) {
    return is_one_of(name, {"model.safetensors", "model.safetensors.index.json"});
}

/// Files of one kind that may stand in place of what was looked for.
struct FoundKind {
    std::function<bool(std::string_view)> holds;
    std::string noun, advice;
};

std::vector<FoundKind> kinds_of(Sought sought, const std::string& place) {
    const std::string save_model =
        "In Python: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT) writes safetensors.";
    const auto ends = [](std::initializer_list<std::string_view> endings) {
        return [known = std::vector<std::string_view>(endings)](std::string_view name) {
            return std::any_of(known.begin(), known.end(), [&](std::string_view end) { return name.ends_with(end); });
        };
    };
    const FoundKind checkpoints{
        [](std::string_view name) { return name.starts_with("checkpoint-") && name.ends_with('/'); },
        "checkpoints of a run", cat("Name one of them: ", place, "/checkpoint-N.")};
    const FoundKind distributed{is_distributed_state, "the sharded state of a DeepSpeed or FSDP run",
                                "Gather the weights first: zero_to_fp32.py, or accelerate merge-weights."};
    const FoundKind cached{[](std::string_view name) { return name == "snapshots/"; },
                           "a repository of the Hugging Face cache",
                           cat("Name its id (ORG/NAME), or the folder in ", place, "/snapshots.")};
    const FoundKind gguf{ends({".gguf"}), "GGUF files, which are for llama.cpp and not read here",
                         "Name the folder that they were made of, or the model's id on the Hugging Face hub."};
    const FoundKind state{is_training_state, "the state of a training run without its weights",
                          "The weights were not saved there, or not copied."};
    if (sought == Sought::tokenizer)
        return {{ends({"tekken.json"}), "Mistral's own form of a tokenizer",
                 "Take the tokenizer.json of the model's form for transformers."},
                {ends({"vocab.json", "merges.txt", ".tiktoken", "spiece.model"}), "another form of a tokenizer",
                 "In Python: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OUT) writes tokenizer.json."},
                {is_adapter, "a PEFT adapter without a tokenizer", "Name its base model's folder."},
                checkpoints,
                cached};
    if (sought == Sought::adapter)
        return {{is_pickle, "pickle files, which are never read",
                 "In Python: PeftModel.from_pretrained(BASE, FOLDER).save_pretrained(OUT) writes safetensors."},
                gguf,
                checkpoints,
                distributed,
                cached,
                state};
    return {{is_shard, "shards", ""},  // see shards_without_index()
            {is_meta_form, "the model in Meta's or Mistral's own form",
             "Take its form for transformers: config.json and model*.safetensors."},
            gguf,
            {is_pickle, "pickle files", cat("A pickle is never read. ", save_model)},
            {ends({".safetensors"}), "safetensors files of other names",
             cat("If one is the model, name the file itself: --model.path ", place, "/NAME.safetensors.")},
            {ends({".h5", ".msgpack", ".onnx", ".tflite"}), "weights of another framework", save_model},
            checkpoints,
            distributed,
            cached,
            state};
}

Contents shards_without_index(const Names& shards) {
    if (shards.size() == 1 && shards.front().ends_with("-00001-of-00001.safetensors"))
        return {cat("it holds one shard, ", shards.front(), ", without an index"), "Rename it to model.safetensors."};
    return {cat("it holds ", shards.size(), shards.size() == 1 ? " shard (" : " shards (", listed(shards),
                ") without their index"),
            "Copy or download model.safetensors.index.json next to them."};
}

Contents adapter_contents(const std::string& place, const std::string& base) {
    return {"it is a PEFT adapter, not a model",
            cat("Name both: --model.path ", base.empty() ? "BASE" : base, " --model.adapter_name_or_path ", place,
                "; unsloth-train merge makes one model of them.")};
}

std::string base_of(const fs::path& folder) {
    try {
        const fs::path file = folder / "adapter_config.json";
        const auto json = parse_json<OrderedJson>(read_file(file), file.string());
        return JsonReader(json, file.string()).string("base_model_name_or_path").value_or("");
    } catch (const Error&) {  // it is used for a remark only
        return {};
    }
}

/// Without what this program is writing there.
Names names_in(const fs::path& folder) {
    constexpr std::size_t most = 10'000;
    Names names;
    std::error_code failure, unreadable;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end && names.size() < most;
         entry.increment(failure))
        if (const std::string name = entry->path().filename().string(); name.find(".tmp-") == std::string::npos)
            names.push_back(cat(name, entry->is_directory(unreadable) ? "/" : ""));
    return names;
}

/// Where nothing in the folder says more: a folder in it may be what is meant.
std::string advice_without_kind(const fs::path& folder, const Names& names, Sought sought, const std::string& place) {
    const char* const wanted = sought == Sought::model     ? "config.json"
                               : sought == Sought::adapter ? "adapter_config.json"
                                                           : "tokenizer.json";
    std::error_code unreadable;
    for (const std::string& name : names)
        if (name.ends_with('/') && fs::exists(folder / name / wanted, unreadable))
            return cat("Name the folder in it: ", place, "/", name.substr(0, name.size() - 1), ".");
    switch (sought) {
        case Sought::model:
            return "Download or copy what is missing.";
        case Sought::adapter:
            return "An adapter is what a run leaves in its training.output_dir, or a checkpoint-N folder of it.";
        case Sought::tokenizer:
            break;
    }
    return "Copy the model's tokenizer files there, or name their folder. Rows of input_ids need none.";
}

}  // namespace

Contents describe_contents(Names names, Sought sought, const std::string& place) {
    std::sort(names.begin(), names.end());
    if (names.empty()) return {"it is empty", ""};
    const auto any = [&](const auto& is) { return std::any_of(names.begin(), names.end(), is); };
    if (sought == Sought::adapter && any(is_model))
        return {"it is a model, not a PEFT adapter",
                "An adapter is what a run leaves in its training.output_dir, or a checkpoint-N folder of it."};
    if (sought == Sought::model && any(is_adapter)) return adapter_contents(place, "");
    for (const FoundKind& kind : kinds_of(sought, place)) {
        Names found;
        std::copy_if(names.begin(), names.end(), std::back_inserter(found), kind.holds);
        if (found.empty()) continue;
        if (kind.advice.empty()) return shards_without_index(found);
        return {cat("it holds ", kind.noun, " (", listed(found), ")"), kind.advice};
    }
    return {cat("it holds ", listed(names)), ""};
}

Error missing_in(const fs::path& folder, const std::string& missing, Sought sought, const std::string& place) {
    const Names names = names_in(folder);
    Contents contents = describe_contents(names, sought, place);
    if (sought == Sought::model && fs::exists(folder / "adapter_config.json") &&
        std::none_of(names.begin(), names.end(), is_model))
        contents = adapter_contents(place, base_of(folder));
    if (contents.advice.empty()) contents.advice = advice_without_kind(folder, names, sought, place);
    return Error("model.incomplete", cat(place, ": no ", missing, ": ", contents.what), contents.advice);
}

}  // namespace unsloth::formats
