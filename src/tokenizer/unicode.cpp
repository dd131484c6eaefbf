#include "tokenizer/unicode.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "tokenizer/unicode_tables.h"

namespace unsloth::unicode {
namespace {

constexpr char32_t replacement_character = 0xFFFD;

uint8_t byte_at(std::string_view text, std::size_t i) {
    return static_cast<uint8_t>(text[i]);
}

/// Length of the valid sequence at `at`, or minus the length of the maximal subpart to be replaced.
int sequence_length(std::string_view text, std::size_t at) {
    const uint8_t lead = byte_at(text, at);
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
        if (at + i >= text.size() || byte_at(text, at + i) < low || byte_at(text, at + i) > high) return -i;
    }
    return size;
}

/// Skips eight ASCII bytes at a time.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
    while (at + 8 <= text.size()) {
        uint64_t word;
        std::memcpy(&word, text.data() + at, 8);
        if (word & 0x8080808080808080u) break;
        at += 8;
    }
    while (at < text.size() && byte_at(text, at) < 0x80) ++at;
    return at;
}

template <class Row>
const Row* find_range(const std::vector<Row>& table, char32_t c) {
    auto row = std::partition_point(table.begin(), table.end(), [c](const Row& r) { return r.last < c; });
    return row != table.end() && row->first <= c ? &*row : nullptr;
}

/// Membership of the basic plane as bits, because every character outside ASCII is looked up.
class PlaneSet {
  public:
    void insert(char32_t first, char32_t last) {
        for (char32_t c = first; c <= last && c < 0x10000; ++c) basic_.set(c);
        if (last >= 0x10000) beyond_.push_back({std::max<char32_t>(first, 0x10000), last});
    }
    void seal() {
        std::sort(beyond_.begin(), beyond_.end(), [](Range a, Range b) { return a.first < b.first; });
    }
    bool contains(char32_t c) const { return c < 0x10000 ? basic_[c] : find_range(beyond_, c) != nullptr; }

  private:
    std::bitset<0x10000> basic_;
    std::vector<Range> beyond_;
};

// Hangul syllables are composed by arithmetic (The Unicode Standard 3.12).
constexpr char32_t s_base = 0xAC00, l_base = 0x1100, v_base = 0x1161, t_base = 0x11A7;
constexpr char32_t l_count = 19, v_count = 21, t_count = 28, s_count = l_count * v_count * t_count;

struct NormalizationData {
    std::unordered_map<char32_t, uint8_t> combining_class;
    std::unordered_map<char32_t, const Decomposition*> decomposition;
    std::unordered_map<uint64_t, char32_t> composition;
    PlaneSet
        unstable;  ///< a text without these is in NFC, and a run of them never reaches over another character

    NormalizationData() {
        for (const ClassRange& range : combining_classes()) {
            unstable.insert(range.first, range.last);
            for (char32_t c = range.first; c <= range.last; ++c) {
                combining_class[c] = static_cast<uint8_t>(range.combining_class);
            }
        }
        std::unordered_map<char32_t, bool> composed;
        for (const Composition& row : compositions()) {
            composition[key(row.first, row.second)] = row.composed;
            composed[row.composed] = true;
            unstable.insert(row.second, row.second);
        }
        for (const Decomposition& row : decompositions()) {
            decomposition[row.code_point] = &row;
            if (!composed.count(row.code_point)) unstable.insert(row.code_point, row.code_point);
        }
        unstable.insert(v_base, v_base + v_count - 1);
        unstable.insert(t_base + 1, t_base + t_count - 1);
        unstable.seal();
    }
    static uint64_t key(char32_t first, char32_t second) { return uint64_t{first} << 32 | second; }
    uint8_t class_of(char32_t c) const {
        const auto it = combining_class.find(c);
        return it == combining_class.end() ? 0 : it->second;
    }
    static const NormalizationData& get() {
        static const NormalizationData data;
        return data;
    }
};

void decompose(const NormalizationData& data, char32_t c, std::u32string& out) {
    if (c - s_base < s_count) {
        const char32_t index = c - s_base;
        out += l_base + index / (v_count * t_count);
        out += v_base + index % (v_count * t_count) / t_count;
        if (index % t_count) out += t_base + index % t_count;
    } else if (const auto it = data.decomposition.find(c); it != data.decomposition.end()) {
        for (const char32_t part : it->second->parts) {
            if (part) out += part;
        }
    } else {
        out += c;
    }
}

/// The composed character of a pair, or 0.
char32_t compose_pair(const NormalizationData& data, char32_t first, char32_t second) {
    if (first - l_base < l_count && second - v_base < v_count) {
        return s_base + ((first - l_base) * v_count + (second - v_base)) * t_count;
    }
    if (first - s_base < s_count && (first - s_base) % t_count == 0 && second - t_base - 1 < t_count - 1) {
        return first + (second - t_base);
    }
    const auto it = data.composition.find(NormalizationData::key(first, second));
    return it == data.composition.end() ? 0 : it->second;
}

/// The canonical composition algorithm on decomposed, ordered characters, in place.
void compose(const NormalizationData& data, std::u32string& text) {
    std::size_t out = 0, starter = std::u32string::npos;
    int last_class = -1;  // of the last character kept behind the starter; -1: none
    for (const char32_t c : text) {
        const int c_class = data.class_of(c);
        if (starter != std::u32string::npos && last_class < c_class) {
            if (const char32_t composed = compose_pair(data, text[starter], c)) {
                text[starter] = composed;
                continue;
            }
        }
        if (c_class == 0) starter = out;
        // A starter right behind a starter can compose with it; one that was kept blocks everything behind
        // it.
        last_class = c_class == 0 ? -1 : c_class;
        text[out++] = c;
    }
    text.resize(out);
}

void normalize_chunk(std::string_view chunk, std::string& out, Alignment& alignment) {
    const NormalizationData& data = NormalizationData::get();
    std::u32string points;
    for (std::size_t at = 0; at < chunk.size();) {
        const Decoded d = decode(chunk, at);
        decompose(data, d.code_point, points);
        at += d.size;
    }
    for (auto it = points.begin(); it != points.end();) {
        if (data.class_of(*it) == 0) {
            ++it;
            continue;
        }
        const auto end = std::find_if(it, points.end(), [&](char32_t c) { return data.class_of(c) == 0; });
        std::stable_sort(it, end,
                         [&](char32_t a, char32_t b) { return data.class_of(a) < data.class_of(b); });
        it = end;
    }
    compose(data, points);
    std::string normal;
    for (const char32_t c : points) append(normal, c);
    out += normal;
    // Only what really changed loses its exact place.
    std::size_t prefix =
        std::mismatch(chunk.begin(), chunk.end(), normal.begin(), normal.end()).first - chunk.begin();
    while (prefix > 0 && prefix < chunk.size() && (byte_at(chunk, prefix) & 0xC0) == 0x80) --prefix;
    alignment.append_exact(prefix);
    alignment.append_block(normal.size() - prefix, chunk.size() - prefix);
}

}  // namespace

Decoded decode(std::string_view text, std::size_t at) {
    const auto continuation = [&](std::size_t i) {
        return static_cast<char32_t>(byte_at(text, at + i) & 0x3F);
    };
    const char32_t lead = byte_at(text, at);
    if (lead < 0x80) return {lead, 1};
    if (lead < 0xE0) return {(lead & 0x1F) << 6 | continuation(1), 2};
    if (lead < 0xF0) return {(lead & 0x0F) << 12 | continuation(1) << 6 | continuation(2), 3};
    return {(lead & 0x07) << 18 | continuation(1) << 12 | continuation(2) << 6 | continuation(3), 4};
}

std::size_t previous(std::string_view text, std::size_t end) {
    do --end;
    while (end > 0 && (byte_at(text, end) & 0xC0) == 0x80);
    return end;
}

void append(std::string& out, char32_t c) {
    const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
            put(0x80 | (c & 0x3F));
    }
}

std::size_t valid_prefix(std::string_view text) {
    std::size_t at = 0;
    while ((at = skip_ascii(text, at)) < text.size()) {
        const int length = sequence_length(text, at);
        if (length < 0) return at;
        at += length;
    }
    return at;
}

void append_lossy(std::string& out, std::string_view bytes, Alignment* alignment) {
    while (!bytes.empty()) {
        const std::size_t valid = valid_prefix(bytes);
        out += bytes.substr(0, valid);
        if (alignment) alignment->append_exact(valid);
        bytes.remove_prefix(valid);
        if (bytes.empty()) break;
        const std::size_t bad = static_cast<std::size_t>(-sequence_length(bytes, 0));
        append(out, replacement_character);
        if (alignment) alignment->append_block(3, bad);
        bytes.remove_prefix(bad);
    }
}

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool is_word(char32_t c) {
    return find_range(word_ranges(), c) != nullptr;
}

std::string_view strip(std::string_view text) {
    const auto removed = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
    while (!text.empty()) {
        const Decoded d = decode(text, 0);
        if (!removed(d.code_point)) break;
        text.remove_prefix(d.size);
    }
    while (!text.empty()) {
        const std::size_t at = previous(text, text.size());
        if (!removed(decode(text, at).code_point)) break;
        text.remove_suffix(text.size() - at);
    }
    return text;
}

bool to_nfc(std::string_view text, std::string& out, Alignment& alignment) {
    const PlaneSet& unstable = NormalizationData::get().unstable;
    std::string result;
    Alignment map;
    std::size_t copied = 0;   // everything before is in `result`
    std::size_t starter = 0;  // the last stable character seen: an unstable one may compose with it
    for (std::size_t at = 0; at < text.size();) {
        if (byte_at(text, at) < 0x80) {
            const std::size_t next = skip_ascii(text, at);
            starter = next - 1;
            at = next;
            continue;
        }
        Decoded d = decode(text, at);
        if (!unstable.contains(d.code_point)) {
            starter = at;
            at += d.size;
            continue;
        }
        while (at < text.size() && unstable.contains((d = decode(text, at)).code_point)) at += d.size;
        result += text.substr(copied, starter - copied);
        map.append_exact(starter - copied);
        normalize_chunk(text.substr(starter, at - starter), result, map);
        copied = starter = at;
    }
    if (copied == 0 || result == text.substr(0, copied)) return false;
    result += text.substr(copied);
    map.append_exact(text.size() - copied);
    out = std::move(result);
    alignment = std::move(map);
    return true;
}

bool shadow_categories(std::string_view text, std::string& out) {
    static const PlaneSet drifting = [] {
        PlaneSet set;
        for (const Replacement& row : category_drift()) set.insert(row.first, row.last);
        set.seal();
        return set;
    }();
    bool found = false;
    for (std::size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
        const Decoded d = decode(text, at);
        if (drifting.contains(d.code_point)) {
            if (!found) out = text;
            found = true;
            std::string stand_in;
            append(stand_in, find_range(category_drift(), d.code_point)->replacement);
            out.replace(at, d.size, stand_in);
        }
        at += d.size;
    }
    return found;
}

}  // namespace unsloth::unicode
