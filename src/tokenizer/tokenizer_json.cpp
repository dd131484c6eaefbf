// tokenizer.json of Hugging Face's `tokenizers`.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "tokenizer/json_reader.h"
#include "tokenizer/llama_tokenizer.h"
#include "tokenizer/merges.h"
#include "tokenizer/pipeline.h"
#include "unsloth/core/log.h"

namespace unsloth::tokenizer {
namespace {

void read_vocab(const JsonReader& vocab, BpeSpec& spec) {
    if (!vocab.value().is_object()) vocab.refuse("an object of tokens and ids");
    spec.vocab.reserve(vocab.value().size());
    // Tables go by id: a few tokens must not make them large. Holes are rare, but vocabularies that were cut down have
    // some.
    constexpr std::size_t holes = std::size_t{1} << 20;
    const std::size_t limit = std::min<std::size_t>(2 * vocab.value().size() + holes, std::size_t{1} << 28);
    std::vector<bool> used;
    for (const auto& [token, value] : vocab.value().items()) {
        const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() < limit;
        if (!is_id)
            vocab[token].refuse(cat("an id from 0 to ", limit - 1, " (there are ", vocab.value().size(), " tokens)"));
        const auto id = value.get<int32_t>();
        if (static_cast<std::size_t>(id) >= used.size()) used.resize(std::max<std::size_t>(id + 1, used.size() * 2));
        if (used[id])
            throw Error("tokenizer.bad-file", cat(vocab.where(), ": the id ", id, " of '", token, "' is used twice"));
        used[id] = true;
        spec.vocab.emplace_back(token, id);
    }
}

/// The two tokens of a merge: "left right" or ["left", "right"].
std::pair<std::string_view, std::string_view> read_pair(const JsonReader& merges, std::size_t i) {
    const nlohmann::json& merge = merges.value()[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    }
    if (!merge.is_string()) merges.at(i).refuse("a pair of tokens");
    const std::string_view pair = merge.get_ref<const std::string&>();
    const std::size_t space = pair.find(' ');
    if (space == std::string_view::npos || pair.find(' ', space + 1) != std::string_view::npos) {
        merges.at(i).refuse("two tokens with one space between them");
    }
    return {pair.substr(0, space), pair.substr(space + 1)};
}

bool is_version_line(const nlohmann::json& merge) {
    return merge.is_string() && merge.get_ref<const std::string&>().rfind("#version", 0) == 0;
}

void read_merges(const JsonReader& merges, BpeSpec& spec) {
    const std::size_t n = merges.size();
    spec.merges.reserve(n);
    const auto id_of = [&](std::string_view token, std::size_t i) {
        const int32_t id = spec.ids.find(token);
        if (id < 0)
            throw Error("tokenizer.bad-file", cat(merges.where(), "[", i, "]: '", token, "' is not in model.vocab"));
        return id;
    };
    std::string merged;
    for (std::size_t i = 0; i < n; ++i) {
        if (is_version_line(merges.value()[i])) continue;
        const auto [left, right] = read_pair(merges, i);
        merged = left;
        merged += right;
        spec.merges.push_back({id_of(left, i), id_of(right, i), id_of(merged, i)});
    }
}

/// Every byte is a token of its own in GPT-2's alphabet.
bool has_byte_alphabet(const StringTable& vocab) {
    for (int byte = 0; byte < 256; ++byte) {
        if (vocab.find(character_of_byte(static_cast<uint8_t>(byte))) < 0) return false;
    }
    return true;
}

/// `spec.reads_bytes` says on entry whether the pipeline in front of the model ends in bytes.
void read_model(const JsonReader& model, BpeSpec& spec) {
    if (const std::string type = model.string("type").value_or("BPE"); type != "BPE")
        throw Error("tokenizer.unsupported",
                    cat(model.where(), ": the type '", type, "' is not known to this program, which reads BPE models"));
    model.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("dropout") && model["dropout"].value() != 0.0)
        model["dropout"].refuse("null: merges are never dropped at random here");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (!model.string(affix).value_or("").empty()) model[affix].refuse("null or \"\"");
    spec.fuse_unknown = model.boolean("fuse_unk").value_or(false);
    spec.byte_fallback = model.boolean("byte_fallback").value_or(false);
    spec.ignore_merges = model.boolean("ignore_merges").value_or(false);
    read_vocab(model.at("vocab"), spec);
    spec.index();
    read_merges(model.at("merges"), spec);
    const bool all_bytes = has_byte_alphabet(spec.ids);
    spec.reads_bytes = spec.reads_bytes && (all_bytes || !spec.byte_fallback);
    if (!model.has("unk_token") || (spec.reads_bytes && all_bytes)) return;  // the latter never needs it
    spec.unknown = spec.ids.find(model.at("unk_token").string());
    if (*spec.unknown < 0) model.at("unk_token").refuse("a token of model.vocab");
}

AddedToken read_added_token(const JsonReader& entry, const std::vector<NormalizerStep>& normalizer) {
    entry.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = entry.at("id").id();
    token.content = token.normalized_content = entry.at("content").string();
    token.single_word = entry.at("single_word").boolean();
    token.lstrip = entry.at("lstrip").boolean();
    token.rstrip = entry.at("rstrip").boolean();
    token.normalized = entry.at("normalized").boolean();
    token.special = entry.at("special").boolean();
    if (token.normalized) {
        std::string storage;
        AlignmentChain ignored;
        token.normalized_content = std::string(normalize(normalizer, token.content, storage, false, ignored));
    }
    return token;
}

/// The last step, and no other, writes bytes in GPT-2's alphabet: then a model may read the bytes themselves.
bool ends_in_bytes(const std::vector<PreTokenizerStep>& steps) {
    const auto writes_alphabet = [](const auto& step) { return std::holds_alternative<ByteAlphabet>(step); };
    return std::count_if(steps.begin(), steps.end(), writes_alphabet) == 1 && writes_alphabet(steps.back());
}

/// HF takes the id from the model's vocabulary, else counts on from its end; the id in the file is only
/// compared.
void read_added_tokens(const JsonReader& list, TokenizerSpec& out) {
    std::unordered_map<std::string, std::size_t> known;  // place in `tokens`
    std::vector<AddedToken> tokens;
    auto next = static_cast<int32_t>(out.model.vocab.size());
    for (const JsonReader& entry : list.elements()) {
        AddedToken token = read_added_token(entry, out.normalizer);
        if (token.content.empty()) continue;
        const int32_t stated = token.id;
        const int32_t in_vocab = out.model.ids.find(token.content);
        if (const auto before = known.find(token.content); before != known.end()) {
            token.id = tokens[before->second].id;
            tokens[before->second].content.clear();  // the later one counts
        } else {
            token.id = in_vocab >= 0 ? in_vocab : next++;
        }
        if (token.id != stated) {
            log::warning(entry.where(), ": the token '", token.content, "' has the id ", token.id, ", not ", stated,
                         " (as in the tokenizers library: ids count on from the end of model.vocab)");
        }
        known[token.content] = tokens.size();
        tokens.push_back(std::move(token));
    }
    for (AddedToken& token : tokens)
        if (!token.content.empty()) out.added.push_back(std::move(token));
}

/// What the post-processor puts around a text must be tokens: the library would return any number given there.
void check_surrounding_ids(const TokenizerSpec& spec, const JsonReader& post_processor) {
    std::set<int32_t> unknown(spec.prefix_ids.begin(), spec.prefix_ids.end());  // a few, where the vocabulary has many
    unknown.insert(spec.suffix_ids.begin(), spec.suffix_ids.end());
    if (unknown.empty()) return;
    for (const auto& [token, id] : spec.model.vocab) unknown.erase(id);
    for (const AddedToken& token : spec.added) unknown.erase(token.id);
    if (!unknown.empty()) post_processor.refuse(cat("ids of tokens: there is none with the id ", *unknown.begin()));
}

/// Whether transformers takes vocabulary, merges and post-processor of this file and makes the rest itself: where
/// tokenizer_config.json names LlamaTokenizer, nothing works on bytes, and the model's own class is not another.
bool is_made_as_llama(const std::filesystem::path& folder, const JsonReader& root) {
    const auto is_value = [&](const char* file, const char* key, std::string_view value) {
        const JsonFile settings(folder / file);
        return settings.root().has(key) && settings.root()[key].value() == value;
    };
    if (!is_value("tokenizer_config.json", "tokenizer_class", "LlamaTokenizer") &&
        !is_value("tokenizer_config.json", "tokenizer_class", "LlamaTokenizerFast"))
        return false;
    for (const char* part : {"normalizer", "pre_tokenizer", "decoder", "post_processor"})
        if (root[part].value().dump().find("\"ByteLevel\"") != std::string::npos) return false;
    return !is_value("config.json", "model_type", "mistral");
}

}  // namespace

TokenizerSpec read_tokenizer_json(const std::filesystem::path& path) {
    const JsonFile file(path);
    const JsonReader root = file.root();
    if (root.string("version").value_or("1.0") != "1.0") root["version"].refuse("\"1.0\"");
    TokenizerSpec out;
    read_pipeline(root, out);
    out.model.reads_bytes = ends_in_bytes(out.pre_tokenizer);
    read_model(root.at("model"), out.model);
    if (out.model.reads_bytes) out.pre_tokenizer.pop_back();
    const bool as_llama = is_made_as_llama(path.parent_path(), root);
    if (as_llama) out.normalizer.clear();
    if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), out);
    if (as_llama) {
        make_llama_pipeline(path.parent_path(), read_llama_settings(path.parent_path(), out.added), true, out);
        out.model.ignore_merges = false;
    }
    check_surrounding_ids(out, root["post_processor"]);
    return out;
}

}  // namespace unsloth::tokenizer
