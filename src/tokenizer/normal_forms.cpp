// NFC, NFD, NFKC and NFKD (The Unicode Standard, section 3.11 and annex 15).
#include <algorithm>
#include <array>
#include <unordered_map>

#include "tokenizer/code_point_set.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_tables.h"

namespace unsloth::tokenizer::unicode {
namespace {

// Hangul syllables are composed by arithmetic (The Unicode Standard 3.12).
constexpr char32_t s_base = 0xAC00, l_base = 0x1100, v_base = 0x1161, t_base = 0x11A7;
constexpr char32_t l_count = 19, v_count = 21, t_count = 28, s_count = l_count * v_count * t_count;

struct NormalizationData {
    std::unordered_map<char32_t, uint8_t> combining_class;
    std::unordered_map<char32_t, std::u32string> canonical, compatibility;  ///< full decompositions
    std::unordered_map<uint64_t, char32_t> composition;
    /// By form: a text without these is in the form, and a run of them never reaches over another character.
    std::array<CodePointSet, 4> unstable;

    NormalizationData() {
        for (const ClassRange& range : combining_classes()) {
            for (CodePointSet& set : unstable) set.insert(range.first, range.last);
            for (char32_t c = range.first; c <= range.last; ++c) {
                combining_class[c] = static_cast<uint8_t>(range.combining_class);
            }
        }
        std::unordered_map<char32_t, bool> composed;
        for (const Composition& row : compositions()) {
            composition[key(row.first, row.second)] = row.composed;
            composed[row.composed] = true;
            insert({NormalForm::nfc, NormalForm::nfkc}, row.second, row.second);
        }
        for (const Decomposition& row : decompositions()) {
            std::u32string& parts = canonical[row.code_point];
            for (const char32_t part : row.parts) {
                if (part) parts += part;
            }
            insert({NormalForm::nfd, NormalForm::nfkd}, row.code_point, row.code_point);
            if (!composed.count(row.code_point)) {
                insert({NormalForm::nfc, NormalForm::nfkc}, row.code_point, row.code_point);
            }
        }
        const std::vector<char32_t>& rows = compatibility_decompositions();
        for (std::size_t at = 0; at < rows.size(); at += 2 + rows[at + 1]) {
            compatibility[rows[at]].assign(rows.begin() + static_cast<std::ptrdiff_t>(at) + 2,
                                           rows.begin() + static_cast<std::ptrdiff_t>(at + 2 + rows[at + 1]));
            insert({NormalForm::nfkc, NormalForm::nfkd}, rows[at], rows[at]);
        }
        insert({NormalForm::nfc, NormalForm::nfkc}, v_base, v_base + v_count - 1);
        insert({NormalForm::nfc, NormalForm::nfkc}, t_base + 1, t_base + t_count - 1);
        insert({NormalForm::nfd, NormalForm::nfkd}, s_base, s_base + s_count - 1);
        for (CodePointSet& set : unstable) set.seal();
    }
    void insert(std::initializer_list<NormalForm> forms, char32_t first, char32_t last) {
        for (const NormalForm form : forms) unstable[static_cast<std::size_t>(form)].insert(first, last);
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

bool composes(NormalForm form) {
    return form == NormalForm::nfc || form == NormalForm::nfkc;
}

bool is_compatibility(NormalForm form) {
    return form == NormalForm::nfkc || form == NormalForm::nfkd;
}

void decompose(const NormalizationData& data, NormalForm form, char32_t c, std::u32string& out) {
    if (c - s_base < s_count) {
        const char32_t index = c - s_base;
        out += l_base + index / (v_count * t_count);
        out += v_base + index % (v_count * t_count) / t_count;
        if (index % t_count) out += t_base + index % t_count;
        return;
    }
    if (is_compatibility(form)) {
        if (const auto it = data.compatibility.find(c); it != data.compatibility.end()) {
            out += it->second;
            return;
        }
    }
    if (const auto it = data.canonical.find(c); it != data.canonical.end()) {
        out += it->second;
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

/// No character before `c`, the first of a decomposition, is reordered with or composed with what begins
/// there.
bool begins_anew(const NormalizationData& data, NormalForm form, char32_t c) {
    const CodePointSet& composing = data.unstable[static_cast<std::size_t>(NormalForm::nfc)];
    return data.class_of(c) == 0 && (!composes(form) || !composing.contains(c));
}

/// `points` is the decomposition of `chunk`.
void finish_chunk(NormalForm form, std::u32string points, std::string_view chunk, std::string& out,
                  Alignment& alignment) {
    const NormalizationData& data = NormalizationData::get();
    for (auto it = points.begin(); it != points.end();) {
        if (data.class_of(*it) == 0) {
            ++it;
            continue;
        }
        const auto end = std::find_if(it, points.end(), [&](char32_t c) { return data.class_of(c) == 0; });
        std::stable_sort(it, end, [&](char32_t a, char32_t b) { return data.class_of(a) < data.class_of(b); });
        it = end;
    }
    if (composes(form)) compose(data, points);
    std::string normal;
    for (const char32_t c : points) append(normal, c);
    out += normal;
    // Only what really changed loses its exact place.
    const auto in_common = std::mismatch(chunk.begin(), chunk.end(), normal.begin(), normal.end()).first;
    auto prefix = static_cast<std::size_t>(in_common - chunk.begin());
    while (prefix > 0 && prefix < chunk.size() && (static_cast<uint8_t>(chunk[prefix]) & 0xC0) == 0x80) --prefix;
    alignment.append_exact(prefix);
    alignment.append_block(normal.size() - prefix, chunk.size() - prefix);
}

/// In pieces as small as possible, so that the alignment is fine.
void normalize_chunk(NormalForm form, std::string_view chunk, std::string& out, Alignment& alignment) {
    const NormalizationData& data = NormalizationData::get();
    std::u32string points, next;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < chunk.size();) {
        const Decoded d = decode(chunk, at);
        next.clear();
        decompose(data, form, d.code_point, next);
        if (begin < at && begins_anew(data, form, next[0])) {
            finish_chunk(form, points, chunk.substr(begin, at - begin), out, alignment);
            points.clear();
            begin = at;
        }
        points += next;
        at += d.size;
    }
    finish_chunk(form, std::move(points), chunk.substr(begin), out, alignment);
}

}  // namespace

bool normalize(NormalForm form, std::string_view text, std::string& out, Alignment& alignment) {
    if (skip_ascii(text, 0) == text.size()) return false;
    const CodePointSet& unstable = NormalizationData::get().unstable[static_cast<std::size_t>(form)];
    std::string result;
    Alignment map;
    std::size_t copied = 0;   // everything before is in `result`
    std::size_t starter = 0;  // the last stable character seen: an unstable one may compose with it
    for (std::size_t at = 0; at < text.size();) {
        if (static_cast<uint8_t>(text[at]) < 0x80) {
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
        normalize_chunk(form, text.substr(starter, at - starter), result, map);
        copied = starter = at;
    }
    if (copied == 0 || result == text.substr(0, copied)) return false;
    result += text.substr(copied);
    map.append_exact(text.size() - copied);
    out = std::move(result);
    alignment = std::move(map);
    return true;
}

}  // namespace unsloth::tokenizer::unicode
