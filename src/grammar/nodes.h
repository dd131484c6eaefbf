// A grammar as nodes: bytes lead from one to another, and a node may call a rule, which returns to where the call says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/grammar/grammar.h"

namespace unsloth::grammar {

constexpr std::size_t most_nodes = 200'000;  ///< of a grammar

struct Nodes {
    struct Bytes {
        uint8_t first = 0, last = 0;
        int32_t to = 0;
    };
    struct Call {
        int32_t rule = 0, back = 0;
    };
    struct Node {
        std::vector<Bytes> bytes;
        std::vector<int32_t> empty;
        std::vector<Call> calls;
        bool ends_rule = false;
    };
    struct Rule {
        int32_t begin = 0, end = 0;
    };
    std::vector<Node> nodes;
    std::vector<Rule> rules;
    int32_t root = 0;  ///< a rule
};

using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;  ///< ranges, both ends included
constexpr uint32_t last_code_point = 0x10FFFF;

/// Sorted, without overlaps, without surrogates.
CodePoints normalised(CodePoints points);
CodePoints complement(const CodePoints& points);

/// Of a text that is UTF-8.
std::vector<uint32_t> code_points_of(std::string_view text);

/// A part of a text, from one node to another.
struct Piece {
    int32_t from = 0, to = 0;
};

/// Makes nodes. Refused where they are too many.
class Builder {
  public:
    int32_t node();
    /// An empty rule to be filled, so that rules may call each other.
    int32_t rule();
    void fill(int32_t rule, Piece piece);

    void connect(int32_t from, int32_t to) { at(from).empty.push_back(to); }
    void byte(int32_t from, uint8_t first, uint8_t last, int32_t to) { at(from).bytes.push_back({first, last, to}); }
    void call(int32_t from, int32_t rule, int32_t to) { at(from).calls.push_back({rule, to}); }
    void code_points(int32_t from, const CodePoints& points, int32_t to);

    Piece empty();
    Piece literal(std::string_view bytes);
    Piece called(int32_t rule);
    Piece sequence(Piece first, Piece second);
    Piece either(const std::vector<Piece>& pieces);
    Piece optional(Piece piece);
    Piece any_number(Piece piece);
    /// At least `least` times, at most `most` (-1: any number) what `make` makes; it is called for each repetition.
    template <class Make>
    Piece repeated(int64_t least, int64_t most, const Make& make) {
        Piece all = empty();
        const int32_t end = node();
        for (int64_t i = 0; i < least; ++i) all = sequence(all, make());
        for (int64_t i = least; i < most; ++i) {
            connect(all.to, end);
            all = sequence(all, make());
        }
        if (most < 0) all = sequence(all, any_number(make()));
        connect(all.to, end);
        return {all.from, end};
    }

    /// Refused where a rule may call itself before a byte.
    Nodes take(int32_t root);

  private:
    Nodes::Node& at(int32_t node) { return nodes_.nodes[static_cast<std::size_t>(node)]; }
    Nodes nodes_;
};

/// How a code point of a text is written: as UTF-8, or inside a JSON string.
enum class Spelling : uint8_t { plain, json_string };
void spell(Builder& builder, int32_t from, const CodePoints& points, Spelling spelling, int32_t to);

/// A regular expression. `whole`: it matches the text as a whole; else anywhere in it, but for ^ and $.
Piece regex_piece(Builder& builder, std::string_view pattern, Spelling spelling, bool whole);
/// A JSON string that is none of these: without escapes, so that it is none of them by another spelling. Refused where
/// they are too long.
Piece other_key(Builder& builder, const std::vector<std::string>& taken_names);
Piece schema_piece(Builder& builder, std::string_view schema);
Piece object_piece(Builder& builder);

}  // namespace unsloth::grammar
