// JSON's own rules, which schemas build on.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "grammar/nodes.h"

namespace unsloth::grammar {

class JsonRules {
  public:
    explicit JsonRules(Builder& builder) : builder_(builder) {}
    Piece any_object() { return call("object"); }

  protected:
    Piece call(const char* name) { return builder_.called(common(name)); }
    Piece text(std::string_view bytes) { return builder_.literal(bytes); }
    Piece join(const std::vector<Piece>& pieces) {
        Piece all = builder_.empty();
        for (const Piece& piece : pieces) all = builder_.sequence(all, piece);
        return all;
    }
    Piece of(const CodePoints& points) {
        const Piece piece{builder_.node(), builder_.node()};
        builder_.code_points(piece.from, points, piece.to);
        return piece;
    }
    Piece plain(const char* regex) { return regex_piece(builder_, regex, Spelling::plain, true); }

    /// Elements with commas between them.
    template <class Element>
    Piece list(const char* begin, const Element& element, const char* end, int64_t least, int64_t most) {
        const auto more = [&] { return join({text(","), call("space"), element()}); };
        Piece inner = builder_.empty();
        if (most != 0) {
            inner =
                join({element(), builder_.repeated(std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1, more)});
            if (least == 0) inner = builder_.optional(inner);
        }
        return join({text(begin), call("space"), inner, call("space"), text(end)});
    }

    Builder& builder_;

  private:
    using Make = Piece (JsonRules::*)();

    /// The rules that many places share.
    int32_t common(const std::string& name) {
        static const std::map<std::string, Make> makers = {
            {"space", &JsonRules::space},     {"character", &JsonRules::character}, {"string", &JsonRules::string},
            {"integer", &JsonRules::integer}, {"number", &JsonRules::number},       {"value", &JsonRules::value},
            {"object", &JsonRules::object},   {"array", &JsonRules::array}};
        const auto known = common_.find(name);
        if (known != common_.end()) return known->second;
        const int32_t rule = builder_.rule();
        common_.emplace(name, rule);
        builder_.fill(rule, (this->*makers.at(name))());
        return rule;
    }

    /// A model that likes white space must come to an end.
    Piece space() { return plain("(| |\\n {0,32}|\\n\\t{1,8})"); }
    Piece character() {
        return builder_.either(
            {of({{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0xD7FF}, {0xE000, last_code_point}}),
             plain("\\\\([\"\\\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                   "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}))")});
    }
    Piece string() { return join({text("\""), builder_.any_number(call("character")), text("\"")}); }
    Piece integer() { return plain("-?(0|[1-9][0-9]{0,14})"); }
    Piece number() { return plain("-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?"); }
    Piece value() {
        return builder_.either(
            {call("string"), call("number"), call("object"), call("array"), text("true"), text("false"), text("null")});
    }
    Piece member() { return join({call("string"), text(":"), call("space"), call("value")}); }
    Piece object() {
        return list("{", [this] { return member(); }, "}", 0, -1);
    }
    Piece array() {
        return list("[", [this] { return call("value"); }, "]", 0, -1);
    }

    std::map<std::string, int32_t> common_;
};

}  // namespace unsloth::grammar
