#include "unsloth/grammar/grammar.h"

#include "grammar/nodes.h"
#include "unsloth/core/error.h"

namespace unsloth::grammar {
namespace {

/// Knuth, Morris and Pratt's automaton without its last state: node i is reached after `i` bytes of the word.
Piece text_without(Builder& builder, const std::string& word) {
    constexpr int last_byte = 0xF7;  // UTF-8 has none above
    const std::size_t size = word.size();
    std::vector<int32_t> nodes(size);
    for (int32_t& node : nodes) node = builder.node();
    const int32_t end = builder.node();
    for (std::size_t i = 0; i < size; ++i) {
        for (int byte = 0; byte <= last_byte; ++byte) {
            const std::string came = word.substr(0, i) + static_cast<char>(byte);
            std::size_t next = came.size();
            while (word.compare(0, next, came, came.size() - next, next) != 0) --next;
            if (next == size) continue;
            builder.byte(nodes[i], static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), nodes[next]);
        }
        builder.connect(nodes[i], end);
    }
    return {nodes.front(), end};
}

Piece piece_of_part(Builder& builder, const Part& part) {
    switch (part.kind) {
        case Part::Kind::literal:
            return builder.literal(part.text);
        case Part::Kind::json_schema:
            return schema_piece(builder, part.text);
        case Part::Kind::json_object:
            return object_piece(builder);
        case Part::Kind::regex:
            return regex_piece(builder, part.text, Spelling::plain, /*whole=*/true);
        case Part::Kind::without:
            return text_without(builder, part.text);
    }
    UNSLOTH_CHECK(false, "no such part");
}

Piece piece_of_parts(Builder& builder, const std::vector<Part>& parts) {
    Piece all = builder.empty();
    for (const Part& part : parts) all = builder.sequence(all, piece_of_part(builder, part));
    return all;
}

Piece piece_of_all(Builder& builder, const std::vector<std::vector<Part>>& alternatives) {
    std::vector<Piece> all;
    for (const std::vector<Part>& parts : alternatives) all.push_back(piece_of_parts(builder, parts));
    return builder.either(all);
}

Nodes nodes_of(const Pattern& pattern) {
    if (pattern.alternatives.empty()) throw Refused("it has no alternative");
    Builder builder;
    const int32_t one = builder.rule();
    builder.fill(one, piece_of_all(builder, pattern.alternatives));
    Piece all = builder.sequence(builder.literal(pattern.begin), builder.called(one));
    if (pattern.repeats)
        all = builder.sequence(
            all, builder.any_number(builder.sequence(builder.literal(pattern.between), builder.called(one))));
    all = builder.sequence(all, builder.literal(pattern.end));
    if (!pattern.lead.empty()) all = builder.sequence(builder.any_number(piece_of_all(builder, pattern.lead)), all);
    const int32_t root = builder.rule();
    builder.fill(root, all);
    return builder.take(root);
}

}  // namespace

std::string Pattern::key() const {
    std::string key;
    const auto add = [&](const std::string& text) { key += cat(text.size(), ":", text); };
    for (const std::string* text : {&begin, &between, &end}) add(*text);
    key += repeats ? "+" : "1";
    const auto add_parts = [&](const std::vector<Part>& parts) {
        key += "|";
        for (const Part& part : parts) {
            key += cat(static_cast<int>(part.kind), " ");
            add(part.text);
        }
    };
    for (const std::vector<Part>& parts : lead) add_parts(parts);
    key += ";";
    for (const std::vector<Part>& parts : alternatives) add_parts(parts);
    return key;
}

Grammar::Grammar(const Pattern& pattern) : nodes_(std::make_unique<const Nodes>(nodes_of(pattern))) {}
Grammar::~Grammar() = default;

}  // namespace unsloth::grammar
