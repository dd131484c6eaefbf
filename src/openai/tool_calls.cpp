#include "unsloth/openai/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/openai/harmony.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* hermes_begin = "<tool_call>";
constexpr const char* hermes_end = "</tool_call>";
constexpr std::string_view white_space = " \t\r\n";
constexpr std::size_t longest_header = 512;  ///< of a call: up to its arguments

std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// Bytes at the end of `text` with which `word` begins.
std::size_t begun_at_end(std::string_view text, std::string_view word) {
    for (std::size_t bytes = std::min(text.size(), word.size() - 1); bytes > 0; --bytes)
        if (text.ends_with(word.substr(0, bytes))) return bytes;
    return 0;
}

std::size_t spaces_at_end(std::string_view text) {
    const std::size_t last = text.find_last_not_of(white_space);
    return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

/// Reads {"name": "…", "arguments": from the front. At the end of the text the answer is not known.
class Header {
  public:
    enum class Is : uint8_t { whole, open, other };
    explicit Header(std::string_view text) : text_(text) {}

    Is read() {
        for (const auto& part : {&Header::brace, &Header::name_key, &Header::colon, &Header::name_text, &Header::comma,
                                 &Header::arguments_key, &Header::colon})
            if (const Is is = (this->*part)(); is != Is::whole) return is;
        skip();
        if (at_ == text_.size()) return Is::open;
        return text_[at_] == '{' ? Is::whole : Is::other;
    }
    const std::string& name() const { return name_; }
    std::size_t end() const { return at_; }

  private:
    void skip() {
        while (at_ < text_.size() && white_space.find(text_[at_]) != std::string_view::npos) ++at_;
    }
    Is one_of(std::initializer_list<std::string_view> words) {
        skip();
        const std::string_view rest = text_.substr(at_);
        for (const std::string_view word : words) {
            if (rest.starts_with(word)) {
                at_ += word.size();
                return Is::whole;
            }
            if (word.starts_with(rest)) return Is::open;
        }
        return Is::other;
    }
    Is brace() { return one_of({"{"}); }
    Is name_key() { return one_of({"\"name\""}); }
    Is colon() { return one_of({":"}); }
    Is comma() { return one_of({","}); }
    Is arguments_key() { return one_of({"\"arguments\"", "\"parameters\""}); }
    Is name_text() {
        if (const Is is = one_of({"\""}); is != Is::whole) return is;
        const std::size_t end = text_.find_first_of("\"\\", at_);
        if (end == std::string_view::npos) return Is::open;
        if (text_[end] == '\\') return Is::other;
        name_ = text_.substr(at_, end - at_);
        at_ = end + 1;
        return Is::whole;
    }
    std::string_view text_;
    std::size_t at_ = 0;
    std::string name_;
};

/// Where the object at the front of a text ends; npos: not yet.
std::size_t end_of_object(std::string_view text) {
    int depth = 0;
    bool in_string = false, is_escaped = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (std::exchange(is_escaped, false)) continue;
        if (in_string) {
            is_escaped = c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '{' || c == '[') ++depth;
        if ((c == '}' || c == ']') && --depth == 0) return i + 1;
    }
    return std::string_view::npos;
}

}  // namespace

Json conversation_with_call() {
    const Json call = {{"id", "abcdefghi"},
                       {"type", "function"},
                       {"function", {{"name", "probe"}, {"arguments", {{"key", "value"}}}}}};
    const Json tool = {{"type", "function"},
                       {"function",
                        {{"name", "probe"},
                         {"description", "A tool."},
                         {"parameters", {{"type", "object"}, {"properties", {{"key", {{"type", "string"}}}}}}}}}};
    return {{"messages", Json::array({{{"role", "user"}, {"content", "Hello"}},
                                      {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}})},
            {"tools", Json::array({tool})},
            {"add_generation_prompt", false}};
}

std::optional<ToolFormat> tool_format_of(std::string_view rendered) {
    std::string text;  // without white space, which differs from one template to another
    for (const char c : rendered)
        if (white_space.find(c) == std::string_view::npos) text += c;
    const auto has = [&](const char* words) { return text.find(words) != std::string::npos; };
    if (has(R"(<tool_call>{"name":"probe","arguments":{"key":"value"}}</tool_call>)")) return ToolFormat::hermes;
    if (has(R"([TOOL_CALLS][{"name":"probe","arguments":{"key":"value"})")) return ToolFormat::mistral;
    if (has(R"({"name":"probe","parameters":{"key":"value"}})")) return ToolFormat::llama3;
    if (has("to=functions.probe") && has("<|channel|>") && has(R"(<|message|>{"key":"value"})"))
        return ToolFormat::harmony;
    return std::nullopt;
}

std::optional<ToolFormat> tool_format_of(const tokenizer::ChatTemplate& chat) {
    try {
        return tool_format_of(chat.render(conversation_with_call(), tokenizer::TrainedTurns::none).text);
    } catch (const Error&) {
        return std::nullopt;
    }
}

grammar::Pattern tool_pattern(ToolFormat format, const std::vector<Tool>& tools, const ToolChoice& choice,
                              bool in_parallel) {
    using Kind = grammar::Part::Kind;
    if (format == ToolFormat::harmony) return harmony_calls(tools, choice);
    grammar::Pattern pattern;
    const char* const key = format == ToolFormat::llama3 ? "parameters" : "arguments";
    for (const Tool& tool : tools) {
        if (choice.kind == ToolChoice::Kind::named && tool.name != choice.name) continue;
        pattern.alternatives.push_back({{Kind::literal, cat("{\"name\": ", quoted(tool.name), ", \"", key, "\": ")},
                                        tool.parameters.empty() ? grammar::Part{Kind::json_object}
                                                                : grammar::Part{Kind::json_schema, tool.parameters},
                                        {Kind::literal, "}"}});
    }
    pattern.repeats = in_parallel && choice.kind == ToolChoice::Kind::required && format != ToolFormat::llama3;
    if (format == ToolFormat::hermes) {
        pattern.begin = cat(hermes_begin, "\n");
        pattern.end = cat("\n", hermes_end);
        pattern.between = cat(pattern.end, "\n", pattern.begin);
    } else if (format == ToolFormat::mistral) {
        pattern.begin = "[";
        pattern.between = ", ";
        pattern.end = "]";
    }
    return pattern;
}

ToolCallReader::ToolCallReader(ToolFormat format, std::vector<std::string> names, std::function<std::string()> new_id,
                               std::size_t most)
    : format_(format), names_(std::move(names)), new_id_(std::move(new_id)), most_(most) {}

bool ToolCallReader::knows(const std::string& name) const {
    return std::ranges::find(names_, name) != names_.end();
}

ToolCallReader::Found ToolCallReader::add(std::string_view text, bool ends) {
    held_ += text;
    Found found;
    while (step(found, ends)) {
    }
    return found;
}

/// False: what is held waits for more text.
bool ToolCallReader::step(Found& found, bool ends) {
    switch (place_) {
        case Place::content:
            return read_content(found, ends);
        case Place::call:
            return read_call(found, ends);
        case Place::arguments:
            return read_arguments(found);
        case Place::after:
            return read_after();
        case Place::plain:
            found.content += std::exchange(held_, {});
            return false;
    }
    return false;
}

/// Up to where a call may begin: for Hermes anywhere, else at the front alone.
bool ToolCallReader::read_content(Found& found, bool ends) {
    if (format_ != ToolFormat::hermes) {
        std::size_t at = held_.find_first_not_of(white_space);
        if (at == std::string::npos) {
            if (ends && calls_ == 0) found.content += std::exchange(held_, {});
            return false;
        }
        const bool is_list = format_ == ToolFormat::mistral;
        if (is_list && held_.compare(at, std::string::npos, mistral_marker,
                                     std::min(held_.size() - at, std::string_view(mistral_marker).size())) == 0) {
            if (!ends) return false;
        } else if (is_list && held_.compare(at, std::string_view(mistral_marker).size(), mistral_marker) == 0) {
            at += std::string_view(mistral_marker).size();
            if (at == held_.size() && !ends) return false;
        }
        if (at < held_.size() && held_[at] == (is_list ? '[' : '{')) {
            at += is_list ? 1 : 0;
            opener_ = held_.substr(0, at);
            held_.erase(0, at);
            place_ = Place::call;
        } else {
            place_ = Place::plain;
        }
        return true;
    }
    const std::size_t begin = held_.find(hermes_begin);
    std::size_t size = begin;
    if (begin == std::string::npos) size = ends ? held_.size() : held_.size() - begun_at_end(held_, hermes_begin);
    std::string text = held_.substr(0, size);
    const std::size_t spaces = ends && begin == std::string::npos && calls_ == 0 ? 0 : spaces_at_end(text);
    found.content += text.substr(0, text.size() - spaces);
    if (begin == std::string::npos) {
        held_.erase(0, size - spaces);
        if (ends) held_.clear();
        return false;
    }
    opener_ = held_.substr(size - spaces, spaces) + hermes_begin;
    held_.erase(0, begin + std::string_view(hermes_begin).size());
    place_ = Place::call;
    return true;
}

/// What looked like a call is content; for Hermes another may follow.
bool ToolCallReader::no_call(Found& found) {
    found.content += std::exchange(opener_, {});
    if (format_ != ToolFormat::hermes) {
        place_ = Place::plain;
        return true;
    }
    place_ = Place::content;
    return !held_.empty();
}

void ToolCallReader::report(Found& found, ToolDelta delta) {
    if (static_cast<std::size_t>(delta.index) < most_) found.calls.push_back(std::move(delta));
}

bool ToolCallReader::read_call(Found& found, bool ends) {
    Header header(held_);
    switch (header.read()) {
        case Header::Is::open:
            return ends || held_.size() > longest_header ? no_call(found) : false;
        case Header::Is::other:
            return read_whole_call(found, ends);
        case Header::Is::whole:
            break;
    }
    if (!knows(header.name())) return no_call(found);
    report(found, {static_cast<int64_t>(calls_++), new_id_(), header.name(), ""});
    held_.erase(0, header.end());
    opener_.clear();
    depth_ = 0;
    in_string_ = is_escaped_ = false;
    place_ = Place::arguments;
    return true;
}

/// A call whose members come in another order.
bool ToolCallReader::read_whole_call(Found& found, bool ends) {
    const std::size_t begin = held_.find_first_not_of(white_space);
    if (begin == std::string::npos || held_[begin] != '{') return no_call(found);
    const std::size_t end = end_of_object(std::string_view(held_).substr(begin));
    if (end == std::string_view::npos) return ends ? no_call(found) : false;
    const Json call = Json::parse(held_.substr(begin, end), nullptr, /*allow_exceptions=*/false);
    const auto member = [&](const char* key) {
        const auto at = call.is_object() ? call.find(key) : call.end();
        return call.is_object() && at != call.end() ? *at : Json();
    };
    const Json name = member("name");
    Json arguments = member("arguments");
    if (!arguments.is_object()) arguments = member("parameters");
    if (!name.is_string() || !arguments.is_object() || !knows(name.get<std::string>())) return no_call(found);
    report(found, {static_cast<int64_t>(calls_++), new_id_(), name.get<std::string>(),
                   arguments.dump(-1, ' ', false, Json::error_handler_t::replace)});
    held_.erase(0, begin + end - 1);  // its last brace is read next
    opener_.clear();
    place_ = Place::after;
    return true;
}

bool ToolCallReader::read_arguments(Found& found) {
    std::size_t at = 0;
    bool ended = false;
    for (; at < held_.size() && !ended; ++at) {
        const char c = held_[at];
        if (std::exchange(is_escaped_, false)) continue;
        if (in_string_) {
            is_escaped_ = c == '\\';
            in_string_ = c != '"';
            continue;
        }
        in_string_ = c == '"';
        if (c == '{' || c == '[') ++depth_;
        if (c == '}' || c == ']') ended = --depth_ == 0;
    }
    if (at > 0) report(found, {static_cast<int64_t>(calls_ - 1), "", "", held_.substr(0, at)});
    held_.erase(0, at);
    if (ended) place_ = Place::after;
    return ended;
}

/// The call's end, and what leads to another.
bool ToolCallReader::read_after() {
    const std::size_t at = held_.find_first_not_of(white_space);
    if (at == std::string::npos) {
        held_.clear();
        return false;
    }
    held_.erase(0, at);
    if (held_.front() == '}') {
        held_.erase(0, 1);
        return true;
    }
    if (format_ == ToolFormat::hermes) {
        const std::string_view end = hermes_end;
        if (end.starts_with(held_) && held_.size() < end.size()) return false;
        if (held_.starts_with(end)) held_.erase(0, end.size());
        place_ = Place::content;
        return true;
    }
    if (held_.front() == (format_ == ToolFormat::mistral ? ',' : ';')) {
        held_.erase(0, 1);
        place_ = Place::call;
        return true;
    }
    if (held_.front() == ']') held_.erase(0, 1);
    place_ = Place::plain;
    return !held_.empty();
}

}  // namespace unsloth::openai
