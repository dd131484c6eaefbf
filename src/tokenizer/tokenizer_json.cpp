#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "tokenizer/flat_map.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/unicode.h"
#include "unsloth/core/log.h"

namespace unsloth {
namespace {

// GPT-2's splitting, which ByteLevel does where `use_regex` holds.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse_type(const JsonReader& part, const std::string& known) {
    throw input_error(cat(
        part.where(), ": the type '", part.at("type").string(),
        "' is not known to this program, which reads byte-level BPE tokenizers (known here: ", known, ")"));
}

void read_vocab(const JsonReader& vocab, BpeSpec& spec) {
    if (!vocab.value().is_object()) vocab.refuse("an object of tokens and ids");
    spec.vocab.reserve(vocab.value().size());
    std::vector<bool> used;
    for (const auto& [token, value] : vocab.value().items()) {
        const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() < (1u << 28);
        if (!is_id)
            JsonReader(value, cat(vocab.where(), "['", token, "']")).refuse("an id from 0 to 268435455");
        const auto id = value.get<int32_t>();
        if (static_cast<std::size_t>(id) >= used.size())
            used.resize(std::max<std::size_t>(id + 1, used.size() * 2));
        if (used[id])
            throw input_error(cat(vocab.where(), ": the id ", id, " of '", token, "' is used twice"));
        used[id] = true;
        spec.vocab.emplace_back(token, id);
    }
}

/// Views the strings of `spec`, which must not change any more.
StringTable index_vocab(const BpeSpec& spec) {
    StringTable ids(spec.vocab.size());
    for (const auto& [token, id] : spec.vocab) ids.insert(token, id);
    return ids;
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

void read_merges(const JsonReader& merges, const StringTable& ids, BpeSpec& spec) {
    const std::size_t n = merges.size();
    spec.merges.reserve(n);
    const auto id_of = [&](std::string_view token, std::size_t i) {
        const int32_t id = ids.find(token);
        if (id < 0) throw input_error(cat(merges.where(), "[", i, "]: '", token, "' is not in model.vocab"));
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

void read_model(const JsonReader& model, BpeSpec& spec, StringTable& ids) {
    if (model.has("type") && model.at("type").string() != "BPE") refuse_type(model, "BPE");
    model.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.has("dropout") && model.at("dropout").value() != 0.0) {
        model.at("dropout").refuse("null: merges are never dropped at random here");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        if (model.has(key) && !model.at(key).string().empty())
            model.at(key).refuse("null or an empty string");
    }
    if (model.boolean_or("byte_fallback", false)) {
        model.at("byte_fallback").refuse("false: SentencePiece-style BPE is not known to this program");
    }
    spec.fuse_unknown = model.boolean_or("fuse_unk", false);
    spec.ignore_merges = model.boolean_or("ignore_merges", false);
    read_vocab(model.at("vocab"), spec);
    ids = index_vocab(spec);
    read_merges(model.at("merges"), ids, spec);
    if (model.has("unk_token")) {
        spec.unknown = ids.find(model.at("unk_token").string());
        if (*spec.unknown < 0) model.at("unk_token").refuse("a token of model.vocab");
    }
}

bool read_normalizer(const JsonReader& part) {
    if (part.null()) return false;
    const std::string& type = part.at("type").string();
    if (type == "NFC") {
        part.only_keys({"type"});
        return true;
    }
    if (type != "Sequence") refuse_type(part, "NFC, Sequence");
    part.only_keys({"type", "normalizers"});
    const JsonReader list = part.at("normalizers");
    bool nfc = false;
    for (std::size_t i = 0; i < list.size(); ++i) nfc = read_normalizer(list.at(i)) || nfc;
    return nfc;
}

SplitStep read_split(const JsonReader& part) {
    part.only_keys({"type", "pattern", "behavior", "invert"});
    SplitStep step;
    const JsonReader pattern = part.at("pattern");
    pattern.only_keys({"Regex", "String"});
    if (pattern.has("Regex")) {
        step.pattern.emplace(pattern.at("Regex").string(), pattern.at("Regex").where());
    } else {
        step.pattern = Regex::literal(pattern.at("String").string(), pattern.at("String").where());
    }
    static const std::unordered_map<std::string, SplitBehavior> behaviors = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const auto behavior = behaviors.find(part.at("behavior").string());
    if (behavior == behaviors.end()) {
        part.at("behavior").refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    }
    step.behavior = behavior->second;
    step.invert = part.boolean_or("invert", false);
    return step;
}

SplitStep read_byte_level(const JsonReader& part) {
    part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    SplitStep step;
    step.add_prefix_space = part.at("add_prefix_space").boolean();
    if (part.boolean_or("use_regex", true)) step.pattern.emplace(gpt2_pattern, part.where());
    return step;
}

SplitStep read_digits(const JsonReader& part) {
    part.only_keys({"type", "individual_digits"});
    SplitStep step;
    step.pattern.emplace("\\p{N}", part.where());
    const bool individual = part.at("individual_digits").boolean();
    step.behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
    return step;
}

/// `byte_level` becomes true with the step that turns characters into bytes; nothing may split behind it.
void read_pre_tokenizer(const JsonReader& part, std::vector<SplitStep>& steps, bool& byte_level) {
    const std::string& type = part.at("type").string();
    if (type == "Sequence") {
        part.only_keys({"type", "pretokenizers"});
        const JsonReader list = part.at("pretokenizers");
        for (std::size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(list.at(i), steps, byte_level);
        return;
    }
    if (byte_level)
        throw input_error(cat(part.where(), ": '", type, "' comes after ByteLevel, which must be the last"));
    if (type == "Split") {
        steps.push_back(read_split(part));
    } else if (type == "Digits") {
        steps.push_back(read_digits(part));
    } else if (type == "ByteLevel") {
        steps.push_back(read_byte_level(part));
        byte_level = true;
    } else {
        refuse_type(part, "Split, Digits, ByteLevel, Sequence");
    }
}

void append_special(const JsonReader& special_tokens, const JsonReader& name, std::vector<int32_t>& ids) {
    const JsonReader list = special_tokens.at(name.string().c_str()).at("ids");
    for (std::size_t i = 0; i < list.size(); ++i) ids.push_back(list.at(i).id());
}

void read_template(const JsonReader& part, TokenizerJson& out) {
    part.only_keys({"type", "single", "pair", "special_tokens"});
    const JsonReader single = part.at("single");
    std::vector<int32_t> prefix, suffix;
    bool sequence = false;
    for (std::size_t i = 0; i < single.size(); ++i) {
        const JsonReader piece = single.at(i);
        piece.only_keys({"SpecialToken", "Sequence"});
        if (piece.has("SpecialToken")) {
            append_special(part.at("special_tokens"), piece.at("SpecialToken").at("id"),
                           sequence ? suffix : prefix);
            continue;
        }
        const JsonReader name = piece.at("Sequence").at("id");
        if (name.string() != "A" || sequence) name.refuse("the sequence A once");
        sequence = true;
    }
    if (!sequence) single.refuse("a template with the sequence A");
    // Of several templates the later one wraps what the earlier one made.
    out.prefix_ids.insert(out.prefix_ids.begin(), prefix.begin(), prefix.end());
    out.suffix_ids.insert(out.suffix_ids.end(), suffix.begin(), suffix.end());
}

void read_post_processor(const JsonReader& part, TokenizerJson& out) {
    if (part.null()) return;
    const std::string& type = part.at("type").string();
    if (type == "Sequence") {
        part.only_keys({"type", "processors"});
        const JsonReader list = part.at("processors");
        for (std::size_t i = 0; i < list.size(); ++i) read_post_processor(list.at(i), out);
    } else if (type == "TemplateProcessing") {
        read_template(part, out);
    } else if (type != "ByteLevel") {  // ByteLevel only trims the offsets that the library reports
        refuse_type(part, "TemplateProcessing, ByteLevel, Sequence");
    }
}

void read_decoder(const JsonReader& part) {
    if (part.null()) part.refuse("the decoder ByteLevel");
    const std::string& type = part.at("type").string();
    if (type == "ByteLevel") return;
    if (type != "Sequence") refuse_type(part, "ByteLevel");
    const JsonReader list = part.at("decoders");
    if (list.size() != 1) list.refuse("ByteLevel alone");
    read_decoder(list.at(std::size_t{0}));
}

AddedToken read_added_token(const JsonReader& entry, bool nfc) {
    entry.only_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = entry.at("id").id();
    token.content = token.normalized_content = entry.at("content").string();
    token.single_word = entry.at("single_word").boolean();
    token.lstrip = entry.at("lstrip").boolean();
    token.rstrip = entry.at("rstrip").boolean();
    token.normalized = entry.at("normalized").boolean();
    token.special = entry.at("special").boolean();
    Alignment ignored;
    if (token.normalized && nfc) unicode::to_nfc(token.content, token.normalized_content, ignored);
    return token;
}

/// HF takes the id from the model's vocabulary, else counts on from its end; the id in the file is only
/// compared.
void read_added_tokens(const JsonReader& list, const StringTable& vocab, TokenizerJson& out) {
    std::unordered_map<std::string, int32_t> known;
    auto next = static_cast<int32_t>(out.model.vocab.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
        AddedToken token = read_added_token(list.at(i), out.nfc);
        if (token.content.empty()) continue;
        const int32_t stated = token.id;
        const int32_t in_vocab = vocab.find(token.content);
        if (const auto before = known.find(token.content); before != known.end()) {
            token.id = before->second;
            std::erase_if(out.added, [&](const AddedToken& other) { return other.content == token.content; });
        } else {
            token.id = in_vocab >= 0 ? in_vocab : next++;
        }
        if (token.id != stated) {
            log::warning(list.at(i).where(), ": the token '", token.content, "' has the id ", token.id,
                         ", not ", stated,
                         " (as in the tokenizers library: ids count on from the end of model.vocab)");
        }
        known.emplace(token.content, token.id);
        out.added.push_back(std::move(token));
    }
}

}  // namespace

TokenizerJson read_tokenizer_json(const std::filesystem::path& path) {
    const nlohmann::json document = parse_json_file(path);
    const JsonReader root(document, path.string());
    if (root.has("version") && root.at("version").string() != "1.0") root.at("version").refuse("\"1.0\"");
    const auto optional_part = [&](const char* key) {
        static const nlohmann::json null;
        return root.has(key) ? root.at(key) : JsonReader(null, cat(path.string(), ": key ", key));
    };
    TokenizerJson out;
    StringTable ids;
    out.nfc = read_normalizer(optional_part("normalizer"));
    bool byte_level = false;
    if (root.has("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), out.steps, byte_level);
    if (!byte_level)
        optional_part("pre_tokenizer").refuse("a ByteLevel step: other vocabularies are not known here");
    if (std::count_if(out.steps.begin(), out.steps.end(),
                      [](const SplitStep& s) { return s.add_prefix_space; }) > 1) {
        throw input_error(cat(path.string(), ": key pre_tokenizer: more than one step adds a prefix space"));
    }
    read_post_processor(optional_part("post_processor"), out);
    read_decoder(optional_part("decoder"));
    read_model(root.at("model"), out.model, ids);
    if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), ids, out);
    return out;
}

}  // namespace unsloth
