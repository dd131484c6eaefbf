#include "tokenizer/pipeline_json.h"

#include <string_view>
#include <unordered_map>

#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

/// Sequences within sequences; real files have two.
constexpr int deepest = 16;

[[noreturn]] void refuse_type(const JsonReader& part, const std::string& known) {
    throw input_error(cat(part.where(), ": the type '", part.at("type").string(),
                          "' is not known to this program (known here: ", known, ")"));
}

/// The members of a Sequence and of those within it, or the part itself.
void add_members(const JsonReader& part, const char* key, int depth, std::vector<JsonReader>& members) {
    if (part.at("type").string() != "Sequence") return members.push_back(part);
    part.only_keys({"type", key});
    if (depth >= deepest) throw input_error(cat(part.where(), ": sequences nested more than ", deepest, " deep"));
    const JsonReader list = part.at(key);
    for (std::size_t i = 0; i < list.size(); ++i) add_members(list.at(i), key, depth + 1, members);
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

std::size_t read_count(const JsonReader& value) {
    return static_cast<std::size_t>(value.id());
}

/// {"String": "…"} or {"Regex": "…"}.
Pattern read_pattern(const JsonReader& part) {
    part.only_keys({"Regex", "String"});
    if (part.has("Regex")) return {Regex(part.at("Regex").string(), part.at("Regex").where()), {}};
    const JsonReader literal = part.at("String");
    if (literal.string().empty()) return {Regex("", literal.where()), {}};
    return {std::nullopt, literal.string()};
}

SplitBehavior read_behavior(const JsonReader& value) {
    static const std::unordered_map<std::string, SplitBehavior> behaviors = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const auto behavior = behaviors.find(value.string());
    if (behavior == behaviors.end()) {
        value.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
    }
    return behavior->second;
}

/// Metaspace as pre-tokenizer and as decoder.
struct Metaspace {
    SpaceReplacement replacement;
    bool split;
};

Metaspace read_metaspace(const JsonReader& part) {
    using Prepend = SpaceReplacement::Prepend;
    part.only_keys({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    static const std::unordered_map<std::string, Prepend> schemes = {
        {"always", Prepend::always}, {"never", Prepend::never}, {"first", Prepend::first}};
    Prepend prepend = Prepend::always;
    if (part.has("prepend_scheme")) {
        const auto scheme = schemes.find(part.at("prepend_scheme").string());
        if (scheme == schemes.end()) part.at("prepend_scheme").refuse("always, never or first");
        prepend = scheme->second;
    }
    if (!part.boolean_or("add_prefix_space", true) && prepend != Prepend::never) {
        part.at("add_prefix_space").refuse("true, or the prepend_scheme never beside it");
    }
    return {{prepend, read_character(part.at("replacement"))}, part.boolean_or("split", true)};
}

void read_byte_level(const JsonReader& part, std::vector<PreTokenizerStep>& steps) {
    part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (part.at("add_prefix_space").boolean()) steps.emplace_back(PrefixSpace{});
    if (part.boolean_or("use_regex", true))
        steps.emplace_back(PatternSplit{{Regex(gpt2_pattern, part.where()), {}}, SplitBehavior::isolated, false});
    steps.emplace_back(ByteAlphabet{});
}

char32_t code_point(const std::string& character) {
    return unicode::decode(character, 0).code_point;
}

void add_pre_tokenizer(const JsonReader& part, std::vector<PreTokenizerStep>& steps) {
    using Class = CharacterSplit::Class;
    const CharacterSplit without_space{Class::white_space, SplitBehavior::removed};
    static const std::unordered_map<std::string, std::vector<PreTokenizerStep>> plain = {
        {"Whitespace", {without_space, CharacterSplit{Class::word, SplitBehavior::contiguous}}},
        {"WhitespaceSplit", {without_space}},
        {"BertPreTokenizer", {without_space, CharacterSplit{Class::punctuation, SplitBehavior::isolated}}}};
    const std::string& type = part.at("type").string();
    if (type == "Split") {
        part.only_keys({"type", "pattern", "behavior", "invert"});
        steps.emplace_back(PatternSplit{read_pattern(part.at("pattern")), read_behavior(part.at("behavior")),
                                        part.boolean_or("invert", false)});
    } else if (type == "ByteLevel") {
        read_byte_level(part, steps);
    } else if (type == "Metaspace") {
        const Metaspace metaspace = read_metaspace(part);
        steps.emplace_back(metaspace.replacement);
        if (metaspace.split)
            steps.emplace_back(CharacterSplit{Class::delimiter, SplitBehavior::merged_with_next,
                                              code_point(metaspace.replacement.replacement)});
    } else if (type == "Digits") {
        part.only_keys({"type", "individual_digits"});
        const bool individual = part.at("individual_digits").boolean();
        steps.emplace_back(
            CharacterSplit{Class::numeric, individual ? SplitBehavior::isolated : SplitBehavior::contiguous});
    } else if (type == "Punctuation") {
        part.only_keys({"type", "behavior"});
        steps.emplace_back(CharacterSplit{
            Class::punctuation, part.has("behavior") ? read_behavior(part.at("behavior")) : SplitBehavior::isolated});
    } else if (type == "CharDelimiterSplit") {
        part.only_keys({"type", "delimiter"});
        steps.emplace_back(
            CharacterSplit{Class::delimiter, SplitBehavior::removed, code_point(read_character(part.at("delimiter")))});
    } else if (const auto found = plain.find(type); found != plain.end()) {
        part.only_keys({"type"});
        steps.insert(steps.end(), found->second.begin(), found->second.end());
    } else {
        refuse_type(part,
                    "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                    "BertPreTokenizer, CharDelimiterSplit");
    }
}

void add_normalizer(const JsonReader& part, std::vector<NormalizerStep>& steps) {
    using unicode::NormalForm;
    static const std::unordered_map<std::string, NormalizerStep> plain = {{"NFC", NormalFormStep{NormalForm::nfc}},
                                                                          {"NFD", NormalFormStep{NormalForm::nfd}},
                                                                          {"NFKC", NormalFormStep{NormalForm::nfkc}},
                                                                          {"NFKD", NormalFormStep{NormalForm::nfkd}},
                                                                          {"Lowercase", LowercaseStep{}},
                                                                          {"StripAccents", StripAccentsStep{}}};
    const std::string& type = part.at("type").string();
    if (type == "Prepend") {
        part.only_keys({"type", "prepend"});
        steps.emplace_back(PrependStep{part.at("prepend").string()});
    } else if (type == "Replace") {
        part.only_keys({"type", "pattern", "content"});
        steps.emplace_back(ReplaceStep{read_pattern(part.at("pattern")), part.at("content").string()});
    } else if (type == "Strip") {
        part.only_keys({"type", "strip_left", "strip_right"});
        steps.emplace_back(StripStep{part.at("strip_left").boolean(), part.at("strip_right").boolean()});
    } else if (const auto step = plain.find(type); step != plain.end()) {
        part.only_keys({"type"});
        steps.push_back(step->second);
    } else {
        refuse_type(part, "Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents");
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
        steps.emplace_back(StripDecoder{read_character(part.at("content")), read_count(part.at("start")),
                                        read_count(part.at("stop"))});
    } else if (type == "Metaspace") {
        const SpaceReplacement metaspace = read_metaspace(part).replacement;
        const bool drop_first = metaspace.prepend != SpaceReplacement::Prepend::never;
        steps.emplace_back(ReplaceDecoder{{std::nullopt, metaspace.replacement}, " ", drop_first, false});
    } else if (type == "BPEDecoder") {
        part.only_keys({"type", "suffix"});
        if (part.at("suffix").string().empty()) part.at("suffix").refuse("a suffix that is not empty");
        steps.emplace_back(ReplaceDecoder{{std::nullopt, part.at("suffix").string()}, " ", false, true});
    } else {
        refuse_type(part, "Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, BPEDecoder");
    }
}

void append_special(const JsonReader& special_tokens, const JsonReader& name, std::vector<int32_t>& ids) {
    const JsonReader list = special_tokens.at(name.string().c_str()).at("ids");
    for (std::size_t i = 0; i < list.size(); ++i) ids.push_back(list.at(i).id());
}

/// Puts ids around what earlier processors made.
void wrap(const std::vector<int32_t>& before, const std::vector<int32_t>& behind, std::vector<int32_t>& prefix,
          std::vector<int32_t>& suffix) {
    prefix.insert(prefix.begin(), before.begin(), before.end());
    suffix.insert(suffix.end(), behind.begin(), behind.end());
}

void read_template(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
    part.only_keys({"type", "single", "pair", "special_tokens"});
    const JsonReader single = part.at("single");
    std::vector<int32_t> before, behind;
    bool sequence = false;
    for (std::size_t i = 0; i < single.size(); ++i) {
        const JsonReader piece = single.at(i);
        piece.only_keys({"SpecialToken", "Sequence"});
        if (piece.has("SpecialToken")) {
            append_special(part.at("special_tokens"), piece.at("SpecialToken").at("id"), sequence ? behind : before);
            continue;
        }
        const JsonReader name = piece.at("Sequence").at("id");
        if (name.string() != "A" || sequence) name.refuse("the sequence A once");
        sequence = true;
    }
    if (!sequence) single.refuse("a template with the sequence A");
    wrap(before, behind, prefix, suffix);
}

/// ["token", id]
int32_t read_token_and_id(const JsonReader& pair) {
    if (pair.size() != 2) pair.refuse("a token and its id");
    pair.at(std::size_t{0}).string();
    return pair.at(std::size_t{1}).id();
}

void add_post_processor(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
    const std::string& type = part.at("type").string();
    if (type == "TemplateProcessing") {
        read_template(part, prefix, suffix);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
        const int32_t before = read_token_and_id(part.at("cls"));
        wrap({before}, {read_token_and_id(part.at("sep"))}, prefix, suffix);
    } else if (type != "ByteLevel") {  // ByteLevel only trims the offsets that the library reports
        refuse_type(part, "Sequence, TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing");
    }
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const JsonReader& part) {
    std::vector<NormalizerStep> steps;
    for (const JsonReader& member : members_of(part, "normalizers")) add_normalizer(member, steps);
    return steps;
}

std::vector<PreTokenizerStep> read_pre_tokenizer(const JsonReader& part) {
    std::vector<PreTokenizerStep> steps;
    for (const JsonReader& member : members_of(part, "pretokenizers")) add_pre_tokenizer(member, steps);
    return steps;
}

Decoder read_decoder(const JsonReader& part) {
    std::vector<DecoderStep> steps;
    for (const JsonReader& member : members_of(part, "decoders")) add_decoder(member, steps);
    return Decoder(std::move(steps), !part.null());
}

void read_post_processor(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
    for (const JsonReader& member : members_of(part, "processors")) add_post_processor(member, prefix, suffix);
}

}  // namespace unsloth::tokenizer
