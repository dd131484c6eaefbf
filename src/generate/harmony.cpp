#include "unsloth/generate/harmony.h"

#include <algorithm>

namespace unsloth::generate {
namespace {

constexpr std::size_t longest_header = 32;  ///< tokens; a longer one is the text of a model that frames nothing
constexpr std::string_view channel_name = "<|channel|>", recipient_name = "to=";

/// Up to white space or the next special token.
std::string word_after(const std::string& header, std::string_view lead) {
    const std::size_t found = header.find(lead);
    if (found == std::string::npos) return "";
    const std::size_t begin = found + lead.size();
    return header.substr(begin, std::min(header.find_first_of(" \t\r\n<", begin), header.size()) - begin);
}

}  // namespace

std::optional<HarmonyTokens> HarmonyTokens::of(const tokenizer::Tokenizer& tokenizer) {
    HarmonyTokens made;
    for (const auto& [name, to] : {std::pair{"<|start|>", &made.start}, std::pair{"<|channel|>", &made.channel},
                                   std::pair{"<|message|>", &made.message}, std::pair{"<|end|>", &made.end}}) {
        const auto id = tokenizer.added_token_id(name);
        if (!id) return std::nullopt;
        *to = *id;
    }
    for (const char* name : {"<|return|>", "<|call|>"})
        if (const auto id = tokenizer.added_token_id(name)) made.stops.push_back(*id);
    return made;
}

void HarmonyTokens::set_stops(std::vector<int32_t>& ids) const {
    std::erase(ids, end);
    for (const int32_t id : stops)
        if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

HarmonyReader::HarmonyReader(tokenizer::Tokenizer tokenizer, HarmonyTokens tokens, std::vector<std::string> stops)
    : tokenizer_(std::move(tokenizer)), tokens_(std::move(tokens)), stops_(std::move(stops)) {}

void HarmonyReader::open(HarmonyPiece::Kind kind, std::string recipient) {
    const bool is_shown = kind == HarmonyPiece::Kind::shown;
    messages_.push_back({kind, std::move(recipient),
                         IncrementalDetokenizer(tokenizer_, is_shown ? stops_ : std::vector<std::string>())});
    in_body_ = true;
}

/// "assistant<|channel|>commentary to=functions.NAME <|constrain|>json", or with the recipient after the role.
void HarmonyReader::open_by_header() {
    const std::string header = tokenizer_.decode(header_, /*skip_special=*/false);
    const std::string recipient = word_after(header, recipient_name);
    if (!recipient.empty()) return open(HarmonyPiece::Kind::call, recipient);
    const bool thinks = word_after(header, channel_name) == "analysis";
    open(thinks ? HarmonyPiece::Kind::analysis : HarmonyPiece::Kind::shown, "");
}

/// A text without a header, which the model seems to write.
bool HarmonyReader::open_plain() {
    const std::vector<int32_t> ids(header_.begin() + static_cast<std::ptrdiff_t>(of_prompt_), header_.end());
    open(HarmonyPiece::Kind::shown, "");
    return std::ranges::all_of(ids, [&](int32_t id) { return add_text(id); });
}

void HarmonyReader::close() {
    if (in_body_ && !messages_.empty()) messages_.back().text.finish();
    in_body_ = is_framed_ = false;
    header_.clear();
    of_prompt_ = 0;
}

bool HarmonyReader::add_text(int32_t id) {
    Message& message = messages_.back();
    message.ids.push_back(id);
    return message.text.add(id);
}

void HarmonyReader::follow(std::span<const int32_t> prompt) {
    const auto start = std::find(prompt.rbegin(), prompt.rend(), tokens_.start).base();
    for (const int32_t id : std::span(start, prompt.end())) add(id);
    if (in_body_) {  // the prompt's part of a text is no part of the answer
        const auto [kind, recipient] = std::pair{messages_.back().kind, messages_.back().recipient};
        messages_.clear();
        open(kind, recipient);
    } else {
        messages_.clear();
        of_prompt_ = header_.size();
        is_framed_ = false;
    }
}

bool HarmonyReader::add(int32_t id) {
    if (id == tokens_.start || id == tokens_.end || std::ranges::find(tokens_.stops, id) != tokens_.stops.end()) {
        close();
        is_framed_ = id == tokens_.start;
        return true;
    }
    if (id == tokens_.channel) {
        if (in_body_) close();
        is_framed_ = true;
        header_.push_back(id);
        return true;
    }
    if (in_body_) return add_text(id);
    if (id == tokens_.message) {
        open_by_header();
        return true;
    }
    header_.push_back(id);
    return is_framed_ || header_.size() - of_prompt_ < longest_header || open_plain();
}

void HarmonyReader::finish() {
    if (!in_body_ && !is_framed_ && header_.size() > of_prompt_) open_plain();
    if (in_body_) messages_.back().text.finish();
}

std::vector<HarmonyPiece> HarmonyReader::take() {
    std::vector<HarmonyPiece> pieces;
    for (Message& message : messages_) {
        const std::size_t stable = message.text.stable_prefix();
        const bool calls = message.kind == HarmonyPiece::Kind::call;
        if (stable <= message.taken && (message.begun || !calls)) continue;
        pieces.push_back({message.kind, message.recipient,
                          message.text.text().substr(message.taken, stable - message.taken), !message.begun});
        message.taken = stable;
        message.begun = true;
    }
    while (messages_.size() > 1) messages_.pop_front();
    return pieces;
}

std::span<const int32_t> HarmonyReader::last_ids() const {
    return messages_.empty() ? std::span<const int32_t>() : std::span<const int32_t>(messages_.back().ids);
}

std::string HarmonyReader::last_text() const {
    return messages_.empty() ? std::string() : messages_.back().text.text();
}

}  // namespace unsloth::generate
