#include "unsloth/spec/kernel_table.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/syntax.h"

namespace unsloth::spec {
namespace {

constexpr const char* built_in[] = {
#include "cards.inc"  // made by CMake from cards/*.json
};

using Json = nlohmann::ordered_json;
using Reader = JsonReader<Json>;

constexpr std::array operator_names = {"gemm", "gemm_fp8", "gemm_nf4", "lora_u", "lora_dy", "attention"};
constexpr std::array form_names = {"nn", "nt", "tn", "tt"};
constexpr std::array kernel_names = {"library", "portable", "sm90", "few", "sm90_pairs"};

template <class Name, std::size_t count>
Name read_name(const Reader& value, const std::array<const char*, count>& names) {
    const auto found = std::ranges::find(names, value.string());
    if (found == names.end()) {
        std::string known;
        for (const char* name : names) known += cat(known.empty() ? "one of " : ", ", name);
        value.refuse(known);
    }
    return static_cast<Name>(found - names.begin());
}

template <class Name, std::size_t count>
const char* name_of(Name name, const std::array<const char*, count>& names) {
    return names[static_cast<std::size_t>(name)];
}

/// A number, or [first, last]; last may be null: without end.
Interval read_interval(const Reader& entry, std::string_view key) {
    if (!entry.has(key)) return {};
    const Reader value = entry[key];
    if (!value.value().is_array()) return {value.integer(), value.integer()};
    value.require(value.size() == 2, "a number, or [first, last]");
    const Reader last = value.at(1);
    const Interval result{value.at(0).integer(), last.null() ? Interval::no_end : last.integer()};
    value.require(result.first <= result.last, "[first, last] with first <= last");
    return result;
}

void write_interval(Json& entry, const char* key, const Interval& interval) {
    if (interval == Interval{}) return;
    if (interval.first == interval.last) {
        entry[key] = interval.first;
    } else {
        entry[key] = {interval.first, interval.last == Interval::no_end ? Json() : Json(interval.last)};
    }
}

/// How many parameters and figures of a wave a choice must have: what its operator's code will read.
struct Arity {
    std::size_t parameters, wave;
};
std::optional<Arity> arity(KernelOperator op, KernelSource kernel) {
    switch (op) {
        case KernelOperator::gemm:
            if (kernel == KernelSource::library) return Arity{9, 2};
            break;
        case KernelOperator::gemm_fp8:
            if (kernel == KernelSource::library) return Arity{0, 0};
            if (kernel == KernelSource::sm90) return Arity{1, 2};
            break;
        case KernelOperator::gemm_nf4:
            if (kernel == KernelSource::portable) return Arity{3, 0};
            if (kernel == KernelSource::sm90 || kernel == KernelSource::sm90_pairs) return Arity{2, 0};
            if (kernel == KernelSource::few) return Arity{1, 0};
            break;
        case KernelOperator::lora_u:
        case KernelOperator::lora_dy:
            if (kernel == KernelSource::library || kernel == KernelSource::sm90) return Arity{0, 0};
            break;
        case KernelOperator::attention:
            if (kernel == KernelSource::library || kernel == KernelSource::portable) return Arity{0, 0};
            break;
    }
    return std::nullopt;
}

KernelChoice read_choice(const Reader& entry) {
    entry.only_keys({"op", "form", "tokens", "n", "k", "rank", "kernel", "parameters", "wave"});
    KernelChoice choice;
    choice.op = read_name<KernelOperator>(entry.at("op"), operator_names);
    if (entry.has("form")) choice.form = read_name<ProductForm>(entry["form"], form_names);
    choice.tokens = read_interval(entry, "tokens");
    choice.n = read_interval(entry, "n");
    choice.k = read_interval(entry, "k");
    choice.rank = read_interval(entry, "rank");
    choice.kernel = read_name<KernelSource>(entry.at("kernel"), kernel_names);
    if (entry.has("parameters"))
        for (const Reader& value : entry["parameters"].elements()) choice.parameters.push_back(value.integer());
    if (entry.has("wave"))
        for (const Reader& value : entry["wave"].elements()) choice.wave.push_back(value.number());
    entry.require(std::ranges::all_of(choice.parameters, [](int64_t p) { return p >= 0; }), "parameters from 0");
    const std::optional<Arity> wanted = arity(choice.op, choice.kernel);
    entry["kernel"].require(wanted.has_value(), "a kernel that this operator has");
    entry.require(choice.parameters.size() == wanted->parameters, "as many parameters as the kernel has");
    entry.require(choice.wave.empty() || choice.wave.size() == wanted->wave, "as many figures of a wave as it has");
    return choice;
}

Json json_of(const KernelChoice& choice) {
    Json entry;
    entry["op"] = name_of(choice.op, operator_names);
    if (choice.form) entry["form"] = name_of(*choice.form, form_names);
    write_interval(entry, "tokens", choice.tokens);
    write_interval(entry, "n", choice.n);
    write_interval(entry, "k", choice.k);
    write_interval(entry, "rank", choice.rank);
    entry["kernel"] = name_of(choice.kernel, kernel_names);
    if (!choice.parameters.empty()) entry["parameters"] = choice.parameters;
    if (!choice.wave.empty()) entry["wave"] = choice.wave;
    return entry;
}

KernelTable read_table(const Reader& entry) {
    entry.only_keys({"card", "compute_capability", "multiprocessors", "versions", "source", "choices"});
    KernelTable table;
    table.card.name = entry.at("card").string();
    const double capability = entry.at("compute_capability").number();
    entry["compute_capability"].require(capability > 0 && capability < 1000, "a number such as 9.0");
    table.card.compute_capability = static_cast<int>(capability * 10 + 0.5);
    table.card.multiprocessors = static_cast<int>(entry.at("multiprocessors").integer());
    entry["multiprocessors"].require(table.card.multiprocessors > 0, "a number above 0");
    const Reader versions = entry.at("versions");
    versions.only_keys({"driver", "cublaslt", "cudnn", "own"});
    table.versions = {versions.string("driver").value_or(""), versions.at("cublaslt").integer(),
                      versions.at("cudnn").integer(), versions.at("own").integer()};
    table.source = entry.at("source").string();
    for (const Reader& choice : entry.at("choices").elements()) table.choices.push_back(read_choice(choice));
    return table;
}

const std::vector<std::shared_ptr<const KernelTable>>& built_in_tables() {
    static const std::vector<std::shared_ptr<const KernelTable>> tables = [] {
        std::vector<std::shared_ptr<const KernelTable>> all;
        for (const char* text : built_in) {
            const Json json = parse_json<Json>(text, "a built-in card");
            if (json.contains("kernels"))
                all.push_back(
                    std::make_shared<const KernelTable>(read_table(Reader(json, "a built-in card").at("kernels"))));
        }
        return all;
    }();
    return tables;
}

}  // namespace

bool KernelChoice::applies_to(const ProductKey& key) const {
    return op == key.op && (!form || *form == key.form) && tokens.holds(key.tokens) && n.holds(key.n) &&
           k.holds(key.k) && rank.holds(key.rank);
}

bool KernelChoice::covers(const KernelChoice& other) const {
    return wave.empty() && other.wave.empty() && op == other.op && (!form || form == other.form) &&
           tokens.holds(other.tokens) && n.holds(other.n) && k.holds(other.k) && rank.holds(other.rank);
}

void KernelTable::put_first(const KernelChoice& choice) {
    std::erase_if(choices, [&](const KernelChoice& other) { return choice.covers(other); });
    choices.insert(choices.begin(), choice);
}

const KernelChoice* KernelTable::find(const ProductKey& key) const {
    const auto found =
        std::ranges::find_if(choices, [&](const KernelChoice& c) { return c.wave.empty() && c.applies_to(key); });
    return found == choices.end() ? nullptr : &*found;
}

std::vector<const KernelChoice*> KernelTable::candidates(const ProductKey& key) const {
    std::vector<const KernelChoice*> found;
    for (const KernelChoice& choice : choices)
        if (!choice.wave.empty() && choice.applies_to(key)) found.push_back(&choice);
    return found;
}

bool KernelTable::measured(const ProductKey& key) const {
    return std::ranges::any_of(choices, [&](const KernelChoice& c) { return c.applies_to(key); });
}

std::shared_ptr<const KernelTable> built_in_kernels(const KernelCard& card) {
    for (const auto& table : built_in_tables())
        if (table->card == card) return table;
    return nullptr;
}

KernelTable parse_kernels(const std::string& text, const std::string& source) {
    const Json json = parse_json<Json>(text, source);
    return read_table(Reader(json, source).at("kernels"));
}

std::string kernels_text(const KernelTable& table) {
    std::string text = "{\n  \"kernels\": {\n";
    const auto line = [&](const char* key, const Json& value) {
        text += cat("    \"", key, "\": ", value.dump(), ",\n");
    };
    line("card", table.card.name);
    line("compute_capability", table.card.compute_capability / 10.0);
    line("multiprocessors", table.card.multiprocessors);
    Json versions;
    if (!table.versions.driver.empty()) versions["driver"] = table.versions.driver;
    versions["cublaslt"] = table.versions.cublaslt;
    versions["cudnn"] = table.versions.cudnn;
    versions["own"] = table.versions.own;
    line("versions", versions);
    line("source", table.source);
    text += "    \"choices\": [";
    for (const KernelChoice& choice : table.choices)
        text += cat(&choice == table.choices.data() ? "\n" : ",\n", "      ", choice_text(choice));
    return text + "\n    ]\n  }\n}\n";
}

KernelTable still_valid(const KernelTable& table, int64_t cublaslt) {
    KernelTable valid = table;
    std::erase_if(valid.choices, [&](const KernelChoice& choice) {
        if (choice.kernel == KernelSource::library)
            return !choice.parameters.empty() && table.versions.cublaslt != cublaslt;
        return table.versions.own != own_kernels_version;
    });
    return valid;
}

std::string choice_text(const KernelChoice& choice) {
    return json_of(choice).dump();
}

std::span<const char* const> card_files() {
    return built_in;
}

}  // namespace unsloth::spec
