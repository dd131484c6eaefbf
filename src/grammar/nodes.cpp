#include "grammar/nodes.h"

#include <algorithm>
#include <unordered_set>

#include "unsloth/core/error.h"

namespace unsloth::grammar {
namespace {

constexpr uint32_t first_surrogate = 0xD800, last_surrogate = 0xDFFF;

/// Ranges of code points with UTF-8 of one length, whose continuation bytes are all ranges of their own.
void add_utf8(Builder& builder, int32_t from, uint32_t first, uint32_t last, int32_t to) {
    constexpr uint32_t ends[] = {0x7F, 0x7FF, 0xFFFF, last_code_point};
    for (const uint32_t end : ends)
        if (first <= end && last > end) {
            add_utf8(builder, from, first, end, to);
            return add_utf8(builder, from, end + 1, last, to);
        }
    const int more = last <= 0x7F ? 0 : last <= 0x7FF ? 1 : last <= 0xFFFF ? 2 : 3;
    for (int i = 1; i <= more; ++i) {
        const uint32_t mask = (1U << (6 * i)) - 1;
        if ((first & ~mask) == (last & ~mask)) continue;
        if ((first & mask) != 0) {
            add_utf8(builder, from, first, first | mask, to);
            return add_utf8(builder, from, (first | mask) + 1, last, to);
        }
        if ((last & mask) != mask) {
            add_utf8(builder, from, first, (last & ~mask) - 1, to);
            return add_utf8(builder, from, last & ~mask, last, to);
        }
    }
    constexpr uint32_t leads[] = {0, 0xC0, 0xE0, 0xF0};
    for (int i = more; i >= 0; --i) {
        const uint32_t lead = i < more ? 0x80 : leads[more],
                       bits = i < more || more == 0 ? (more == 0 ? 0x7F : 0x3F) : 0x3F;
        const int32_t next = i == 0 ? to : builder.node();
        builder.byte(from, static_cast<uint8_t>(lead | (first >> (6 * i) & bits)),
                     static_cast<uint8_t>(lead | (last >> (6 * i) & bits)), next);
        from = next;
    }
}

}  // namespace

CodePoints normalised(CodePoints points) {
    std::sort(points.begin(), points.end());
    CodePoints joined;
    const auto add = [&](uint32_t first, uint32_t last) {
        if (first > last) return;
        if (!joined.empty() && first <= joined.back().second + 1)
            joined.back().second = std::max(joined.back().second, last);
        else
            joined.emplace_back(first, last);
    };
    for (const auto& [first, last] : points) {
        if (last < first_surrogate || first > last_surrogate) {
            add(first, last);
            continue;
        }
        if (first < first_surrogate) add(first, first_surrogate - 1);
        if (last > last_surrogate) add(last_surrogate + 1, last);
    }
    return joined;
}

CodePoints complement(const CodePoints& points) {
    CodePoints others;
    uint32_t next = 0;
    for (const auto& [first, last] : normalised(points)) {
        if (first > next) others.emplace_back(next, first - 1);
        next = last + 1;
    }
    if (next <= last_code_point) others.emplace_back(next, last_code_point);
    return normalised(others);
}

std::vector<uint32_t> code_points_of(std::string_view text) {
    std::vector<uint32_t> points;
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        uint32_t point = bytes == 1 ? lead : lead & (0xFFU >> (bytes + 1));
        for (std::size_t k = 1; k < bytes; ++k) point = point << 6U | (static_cast<unsigned char>(text[i + k]) & 0x3FU);
        points.push_back(point);
        i += bytes;
    }
    return points;
}

int32_t Builder::node() {
    if (nodes_.nodes.size() >= most_nodes) throw Refused(cat("it is too large: more than ", most_nodes, " states"));
    nodes_.nodes.emplace_back();
    return static_cast<int32_t>(nodes_.nodes.size() - 1);
}

int32_t Builder::rule() {
    nodes_.rules.push_back({node(), node()});
    at(nodes_.rules.back().end).ends_rule = true;
    return static_cast<int32_t>(nodes_.rules.size() - 1);
}

void Builder::fill(int32_t rule, Piece piece) {
    connect(nodes_.rules[static_cast<std::size_t>(rule)].begin, piece.from);
    connect(piece.to, nodes_.rules[static_cast<std::size_t>(rule)].end);
}

void Builder::code_points(int32_t from, const CodePoints& points, int32_t to) {
    for (const auto& [first, last] : points) add_utf8(*this, from, first, last, to);
}

Piece Builder::empty() {
    const int32_t here = node();
    return {here, here};
}

Piece Builder::literal(std::string_view bytes) {
    Piece piece = empty();
    for (const char c : bytes) {
        const int32_t next = node();
        byte(piece.to, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
        piece.to = next;
    }
    return piece;
}

Piece Builder::called(int32_t rule) {
    const Piece piece{node(), node()};
    call(piece.from, rule, piece.to);
    return piece;
}

Piece Builder::sequence(Piece first, Piece second) {
    connect(first.to, second.from);
    return {first.from, second.to};
}

Piece Builder::either(const std::vector<Piece>& pieces) {
    const Piece all{node(), node()};
    for (const Piece& piece : pieces) {
        connect(all.from, piece.from);
        connect(piece.to, all.to);
    }
    return all;
}

Piece Builder::optional(Piece piece) {
    return either({piece, empty()});
}

Piece Builder::any_number(Piece piece) {
    const int32_t here = node();
    connect(here, piece.from);
    connect(piece.to, here);
    return {here, here};
}

namespace {

/// Finds rules that may call themselves before a byte, by depth first search over what is reached without one. A rule
/// that was called may be empty: what follows its call is reached, too.
class SelfCalls {
  public:
    explicit SelfCalls(const Nodes& nodes) : nodes_(nodes), seen_(nodes.rules.size(), 0) {}
    void check() {
        for (std::size_t rule = 0; rule < nodes_.rules.size(); ++rule) visit(static_cast<int32_t>(rule), 0);
    }

  private:
    void visit(int32_t rule, int depth) {
        constexpr int deepest = 2000;
        char& seen = seen_[static_cast<std::size_t>(rule)];
        if (seen == 2) return;
        if (seen == 1) throw Refused("it refers to itself without anything in between");
        if (depth > deepest) throw Refused("it is nested too deep");
        seen = 1;
        std::vector<int32_t> open = {nodes_.rules[static_cast<std::size_t>(rule)].begin};
        std::unordered_set<int32_t> reached;
        while (!open.empty()) {
            const int32_t here = open.back();
            open.pop_back();
            if (!reached.insert(here).second) continue;
            const Nodes::Node& node = nodes_.nodes[static_cast<std::size_t>(here)];
            open.insert(open.end(), node.empty.begin(), node.empty.end());
            for (const Nodes::Call& call : node.calls) {
                visit(call.rule, depth + 1);
                open.push_back(call.back);
            }
        }
        seen = 2;
    }
    const Nodes& nodes_;
    std::vector<char> seen_;
};

}  // namespace

Nodes Builder::take(int32_t root) {
    nodes_.root = root;
    SelfCalls(nodes_).check();
    return std::move(nodes_);
}

void spell(Builder& builder, int32_t from, const CodePoints& given, Spelling spelling, int32_t to) {
    const CodePoints points = normalised(given);
    if (spelling == Spelling::plain) return builder.code_points(from, points, to);
    const auto within = [](const CodePoints& of, uint32_t point) {
        return std::any_of(of.begin(), of.end(),
                           [&](const auto& range) { return range.first <= point && point <= range.second; });
    };
    CodePoints rest;
    for (const auto& range : points) {  // without control characters, quotes and backslashes
        const auto add = [&](uint32_t low, uint32_t high) {
            const uint32_t first = std::max(range.first, low), last = std::min(range.second, high);
            if (first <= last) rest.emplace_back(first, last);
        };
        add(0x20, '"' - 1);
        add('"' + 1, '\\' - 1);
        add('\\' + 1, last_code_point);
    }
    builder.code_points(from, rest, to);
    const auto add_text = [&](const std::string& text) {
        const Piece piece = builder.literal(text);
        builder.connect(from, piece.from);
        builder.connect(piece.to, to);
    };
    constexpr std::pair<uint32_t, char> escapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                     {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
    for (uint32_t point = 0; point <= '\\'; ++point) {
        if ((point >= 0x20 && point != '"' && point != '\\') || !within(points, point)) continue;
        const auto* const known = std::find_if(std::begin(escapes), std::end(escapes),
                                               [&](const auto& escape) { return escape.first == point; });
        constexpr const char* digits = "0123456789abcdef";
        add_text(known != std::end(escapes) ? std::string("\\") + known->second
                                            : std::string("\\u00") + digits[point / 16] + digits[point % 16]);
    }
}

}  // namespace unsloth::grammar
