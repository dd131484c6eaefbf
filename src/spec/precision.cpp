#include "unsloth/spec/precision.h"

#include <algorithm>
#include <optional>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/core/whole_number.h"

namespace unsloth::spec {
namespace {

constexpr const char* option = "model.precision";
constexpr const char* names =
    "Names are default, model.embed_tokens, lm_head, model.layers, model.layers.N, model.layers.N-M, and parts of such "
    "layers (.self_attn, .mlp, .mlp.up_proj, …).";

const std::vector<std::pair<std::string, WeightType>>& types() {
    static const std::vector<std::pair<std::string, WeightType>> all = {
        {"nf4", WeightType::nf4},       {"fp4", WeightType::fp4},     {"int8", WeightType::int8},
        {"bf16", WeightType::bf16},     {"fp16", WeightType::f16},    {"fp32", WeightType::f32},
        {"bfloat16", WeightType::bf16}, {"float16", WeightType::f16}, {"float32", WeightType::f32}};
    return all;
}

WeightType type_named(const std::string& key, const std::string& name) {
    std::vector<std::string> known;
    for (const auto& [text, type] : types()) {
        if (text == name) return type;
        known.push_back(text);
    }
    const std::string meant = did_you_mean(nearest(name, known));
    throw Error("model.precision", cat(option, ": '", key, "' is to be '", name, "', which is no type"),
                cat(meant, meant.empty() ? "" : " ", "Types are nf4, fp4, int8, bf16, fp16 and fp32."));
}

/// Whether `whole` is the module `part`, or is inside it.
bool is_within(std::string_view whole, std::string_view part) {
    return part.empty() || whole == part || (whole.starts_with(part) && whole[part.size()] == '.');
}

/// Whether a module below a layer holds weight matrices.
bool is_part_of_layer(const std::string& below) {
    for (int p = 0; p < projection_count; ++p)
        for (const bool crosses : {false, true})
            if (is_within(path_of({.projection = static_cast<Projection>(p)}, crosses), below)) return true;
    return false;
}

[[noreturn]] void refuse_key(const std::string& key) {
    std::vector<std::string> known = {"default", "model.embed_tokens", "lm_head", "model.layers"};
    constexpr std::string_view layers = "model.layers.";
    const std::string_view rest = key.starts_with(layers) ? std::string_view(key).substr(layers.size()) : "";
    const std::string layer(rest.substr(0, rest.find('.')));
    for (const std::string_view path : projection_paths) {
        const std::string whole = cat(layers, layer.empty() ? "0" : layer, ".", path);
        known.push_back(whole);
        known.push_back(whole.substr(0, whole.rfind('.')));
    }
    const std::string meant = did_you_mean(nearest(key, known));
    throw Error("model.precision", cat(option, ": there is no module '", key, "'"),
                cat(meant, meant.empty() ? "" : " ", names));
}

}  // namespace

PrecisionMap::Entry PrecisionMap::read_key(const std::string& key) {
    Entry entry;
    entry.key = key;
    const std::string layers = "model.layers";
    if (key == "default") return entry;
    if (key == "model.embed_tokens" || key == "lm_head") {
        entry.part = key == "lm_head" ? Entry::Part::head : Entry::Part::embedding;
        return entry;
    }
    entry.part = Entry::Part::layers;
    if (key == layers) return entry;
    if (!key.starts_with(layers + ".")) refuse_key(key);
    const std::string rest = key.substr(layers.size() + 1), range = rest.substr(0, rest.find('.'));
    if (range.size() < rest.size()) entry.below = rest.substr(range.size() + 1);
    const std::size_t dash = range.find('-');
    const auto first = whole_number(range.substr(0, dash));
    const auto last = dash == std::string::npos ? first : whole_number(range.substr(dash + 1));
    const bool ends_in_dot = range.size() < rest.size() && entry.below.empty();
    if (!first || !last || *last < *first || ends_in_dot || !is_part_of_layer(entry.below)) refuse_key(key);
    entry.first = *first;
    entry.last = *last;
    return entry;
}

PrecisionMap::PrecisionMap(const std::vector<std::pair<std::string, std::string>>& entries) {
    for (const auto& [key, type] : entries) {
        const bool twice =
            std::any_of(entries_.begin(), entries_.end(), [&, &key = key](const Entry& e) { return e.key == key; });
        if (twice) throw Error("model.precision", cat(option, ": '", key, "' is named twice"));
        entries_.push_back(read_key(key));
        entries_.back().type = type_named(key, type);
    }
}

/// How closely the entry names a tensor; 0: not at all. Every part of a name counts more than one layer does over a
/// range of them.
int PrecisionMap::Entry::rank(const TensorRule& rule, bool tied) const {
    const auto parts = static_cast<int>(below.empty() ? 0 : 1 + std::count(below.begin(), below.end(), '.'));
    switch (part) {
        case Part::all:
            return rule.role == TensorRole::linear ? 1 : 0;
        case Part::layers:
            if (rule.role != TensorRole::linear || rule.id.layer < first || rule.id.layer > last) return 0;
            if (!is_within(path_of(rule.id, rule.hf_name.find(".cross_attn.") != std::string::npos), below)) return 0;
            return last == INT64_MAX ? 2 : 4 + 2 * parts + (first == last ? 1 : 0);
        case Part::embedding:
            return rule.role == TensorRole::embed_tokens ? 3 : 0;
        case Part::head:
            return rule.role == TensorRole::lm_head || (tied && rule.role == TensorRole::embed_tokens) ? 2 : 0;
    }
    return 0;
}

const PrecisionMap::Entry* PrecisionMap::entry_of(const TensorRule& rule, bool tied) const {
    const Entry* best = nullptr;
    int most = 0;
    for (const Entry& entry : entries_) {
        const int rank = entry.rank(rule, tied);
        if (rank > 0 && rank == most && entry.type != best->type)
            throw Error("model.precision",
                        cat(option, ": '", best->key, "' is ", name_of(best->type), " and '", entry.key, "' ",
                            name_of(entry.type), ", and both name ", rule.hf_name),
                        "Let the ranges be apart.");
        if (rank <= most) continue;
        best = &entry;
        most = rank;
    }
    return best;
}

void PrecisionMap::check(const ModelSpec& model) const {
    if (empty()) return;
    const Entry *embedding = nullptr, *head = nullptr;
    for (const Entry& entry : entries_) {
        if (entry.part == Entry::Part::layers && entry.last != INT64_MAX && entry.last >= model.num_layers)
            throw Error("model.precision",
                        cat(option, ": '", entry.key, "', but the model has layers 0 to ", model.num_layers - 1));
        if (entry.part == Entry::Part::embedding) embedding = &entry;
        if (entry.part == Entry::Part::head) head = &entry;
    }
    if (model.tie_word_embeddings && embedding != nullptr && head != nullptr && embedding->type != head->type)
        throw Error("model.precision",
                    cat(option, ": model.embed_tokens is ", name_of(embedding->type), " and lm_head ",
                        name_of(head->type), ", but they are one matrix in this model (tie_word_embeddings)"),
                    "Name one of them.");
    for (const TensorRule& rule : tensor_table(model)) (void)entry_of(rule, model.tie_word_embeddings);
}

WeightType PrecisionMap::of(const TensorRule& rule, const ModelSpec& model) const {
    const Entry* const entry = entry_of(rule, model.tie_word_embeddings);
    return entry != nullptr ? entry->type : WeightType::automatic;
}

WeightType PrecisionMap::of_default() const {
    for (const Entry& entry : entries_)
        if (entry.part == Entry::Part::all) return entry.type;
    return WeightType::automatic;
}

bool PrecisionMap::names_embeddings() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.part == Entry::Part::embedding; });
}

bool PrecisionMap::names_head() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& entry) { return entry.part == Entry::Part::head; });
}

}  // namespace unsloth::spec
