// The parts of a tokenizer.json around its model.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "tokenizer/json_reader.h"
#include "tokenizer/tokenizer_spec.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

/// Sequences within sequences; real files have two.
constexpr int deepest = 16;

[[noreturn]] void refuse_type(const JsonReader& part, const std::string& known) {
    throw Error("tokenizer.unsupported", cat(part.where(), ": the type '", part.at("type").string(),
                                             "' is not known to this program (known here: ", known, ")"));
}

/// The members of a Sequence and of those within it, or the part itself.
void add_members(const JsonReader& part, const char* key, int depth, std::vector<JsonReader>& members) {
    if (part.at("type").string() != "Sequence") return members.push_back(part);
    part.only_keys({"type", key});
    if (depth >= deepest)
        throw Error("tokenizer.unsupported", cat(part.where(), ": sequences nested more than ", deepest, " deep"));
    for (const JsonReader& member : part.at(key).elements()) add_members(member, key, depth + 1, members);
}
std::vector<JsonReader> members_of(const JsonReader& part, const char* key) {
    std::vector<JsonReader> members;
    if (!part.null()) add_members(part, key, 0, members);
    return members;
}

/// One character.
const std::string& read_character(const JsonReader& value) {
    const std::string& text = value.string();
    if (text.empty() || unicode::decode(text, 0).size != text.size()) value.refuse("one character");
    return text;
}

/// {"String": "…"} or {"Regex": "…"}.
Pattern read_pattern(const JsonReader& part) {
    part.only_keys({"Regex", "String"});
    if (part.has("Regex")) return {Regex(part.at("Regex").string(), part.at("Regex").where()), {}};
    const JsonReader literal = part.at("String");
    if (literal.string().empty()) return {Regex("", literal.where()), {}};
    return {std::nullopt, literal.string()};
}

/// The one of `names` that the value is, counted as in its enum.
template <class Enum, std::size_t n>
Enum read_enum(const JsonReader& value, const std::string_view (&names)[n], const char* expected) {
    const auto found = std::find(std::begin(names), std::end(names), value.string());
    if (found == std::end(names)) value.refuse(expected);
    return static_cast<Enum>(found - std::begin(names));
}

SplitBehavior read_behavior(const JsonReader& value) {
    static constexpr std::string_view names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                 "Contiguous"};
    return read_enum<SplitBehavior>(value, names,
                                    "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Of Metaspace as pre-tokenizer and as decoder.
SpaceReplacement read_metaspace(const JsonReader& part) {
    using Prepend = SpaceReplacement::Prepend;
    part.only_keys({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    static constexpr std::string_view schemes[] = {"always", "never", "first"};
    const Prepend prepend = part.has("prepend_scheme")
                                ? read_enum<Prepend>(part.at("prepend_scheme"), schemes, "always, never or first")
                                : Prepend::always;
    if (!part.boolean("add_prefix_space").value_or(true) && prepend != Prepend::never) {
        part.at("add_prefix_space").refuse("true, or the prepend_scheme never next to it");
    }
    return {prepend, read_character(part.at("replacement"))};
}

void read_byte_level(const JsonReader& part, std::vector<PreTokenizerStep>& steps) {
    part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (part.at("add_prefix_space").boolean())
        steps.emplace_back(SpaceReplacement{SpaceReplacement::Prepend::always, " "});
    if (part.boolean("use_regex").value_or(true))
        steps.emplace_back(PatternSplit{{Regex(gpt2_pattern, part.where()), {}}, SplitBehavior::isolated, false});
    steps.emplace_back(ByteAlphabet{});
}

void add_pre_tokenizer(const JsonReader& part, bool normalized, std::vector<PreTokenizerStep>& steps) {
    const std::string& type = part.at("type").string();
    if (type == "Split") {
        part.only_keys({"type", "pattern", "behavior", "invert"});
        steps.emplace_back(PatternSplit{read_pattern(part.at("pattern")), read_behavior(part.at("behavior")),
                                        part.boolean("invert").value_or(false)});
    } else if (type == "ByteLevel") {
        read_byte_level(part, steps);
    } else if (type == "Metaspace") {
        const SpaceReplacement metaspace = read_metaspace(part);
        if (metaspace.prepend == SpaceReplacement::Prepend::first && (normalized || !steps.empty()))
            part.at("prepend_scheme").refuse("always or never after a normalizer or another step");
        steps.emplace_back(metaspace);
        if (part.boolean("split").value_or(true))
            steps.emplace_back(
                PatternSplit{{std::nullopt, metaspace.replacement}, SplitBehavior::merged_with_next, false});
    } else if (type == "Digits") {
        part.only_keys({"type", "individual_digits"});
        const bool individual = part.at("individual_digits").boolean();
        steps.emplace_back(PatternSplit{{std::nullopt, {}, unicode::is_numeric},
                                        individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
    } else if (type == "Punctuation") {
        part.only_keys({"type", "behavior"});
        steps.emplace_back(
            PatternSplit{{std::nullopt, {}, unicode::is_punctuation},
                         part.has("behavior") ? read_behavior(part["behavior"]) : SplitBehavior::isolated});
    } else {
        refuse_type(part, "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation");
    }
}

void add_normalizer(const JsonReader& part, std::vector<NormalizerStep>& steps) {
    const std::string& type = part.at("type").string();
    if (type == "Prepend") {
        part.only_keys({"type", "prepend"});
        steps.emplace_back(PrependStep{part.at("prepend").string()});
    } else if (type == "Replace") {
        part.only_keys({"type", "pattern", "content"});
        steps.emplace_back(ReplaceStep{read_pattern(part.at("pattern")), part.at("content").string()});
    } else if (type == "NFC") {
        part.only_keys({"type"});
        steps.emplace_back(NfcStep{});
    } else {
        refuse_type(part, "Sequence, Prepend, Replace, NFC");
    }
}

void add_decoder(const JsonReader& part, std::vector<DecoderStep>& steps) {
    const std::string& type = part.at("type").string();
    if (type == "ByteLevel") {
        steps.emplace_back(ByteLevelDecoder{});
    } else if (type == "ByteFallback") {
        steps.emplace_back(ByteFallbackDecoder{});
    } else if (type == "Fuse") {
        steps.emplace_back(FuseDecoder{});
    } else if (type == "Replace") {
        part.only_keys({"type", "pattern", "content"});
        steps.emplace_back(ReplaceDecoder{read_pattern(part.at("pattern")), part.at("content").string()});
    } else if (type == "Strip") {
        part.only_keys({"type", "content", "start", "stop"});
        steps.emplace_back(
            StripDecoder{read_character(part.at("content")), part.at("start").id(), part.at("stop").id()});
    } else if (type == "Metaspace") {
        const SpaceReplacement metaspace = read_metaspace(part);
        const bool drop_first = metaspace.prepend != SpaceReplacement::Prepend::never;
        steps.emplace_back(ReplaceDecoder{{std::nullopt, metaspace.replacement}, " ", drop_first});
    } else {
        refuse_type(part, "Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace");
    }
}

void append_special(const JsonReader& special_tokens, const JsonReader& name, std::vector<int32_t>& ids) {
    for (const JsonReader& id : special_tokens.at(name.string()).at("ids").elements()) ids.push_back(id.id());
}

/// Puts ids around what earlier processors made.
void read_template(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
    part.only_keys({"type", "single", "pair", "special_tokens"});
    const JsonReader single = part.at("single");
    std::vector<int32_t> before, after;
    bool sequence = false;
    for (const JsonReader& piece : single.elements()) {
        piece.only_keys({"SpecialToken", "Sequence"});
        if (piece.has("SpecialToken")) {
            append_special(part.at("special_tokens"), piece["SpecialToken"].at("id"), sequence ? after : before);
            continue;
        }
        const JsonReader name = piece.at("Sequence").at("id");
        if (name.string() != "A" || sequence) name.refuse("the sequence A once");
        sequence = true;
    }
    if (!sequence) single.refuse("a template with the sequence A");
    prefix.insert(prefix.begin(), before.begin(), before.end());
    suffix.insert(suffix.end(), after.begin(), after.end());
}

void add_post_processor(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
    const std::string& type = part.at("type").string();
    if (type == "TemplateProcessing") {
        read_template(part, prefix, suffix);
    } else if (type != "ByteLevel") {  // ByteLevel only trims the offsets that the library reports
        refuse_type(part, "Sequence, TemplateProcessing, ByteLevel");
    }
}

}  // namespace

void read_pipeline(const JsonReader& root, TokenizerSpec& out) {
    for (const JsonReader& step : members_of(root["normalizer"], "normalizers")) add_normalizer(step, out.normalizer);
    for (const JsonReader& step : members_of(root["pre_tokenizer"], "pretokenizers"))
        add_pre_tokenizer(step, !out.normalizer.empty(), out.pre_tokenizer);
    out.decoder.sequence = root.has("decoder");
    for (const JsonReader& step : members_of(root["decoder"], "decoders")) add_decoder(step, out.decoder.steps);
    for (const JsonReader& step : members_of(root["post_processor"], "processors"))
        add_post_processor(step, out.prefix_ids, out.suffix_ids);
}

}  // namespace unsloth::tokenizer
