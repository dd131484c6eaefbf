#include "unsloth/planner/card.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::planner {
namespace {

using Json = nlohmann::json;
using Reader = JsonReader<Json>;

constexpr double least = 1e-9, most = 1e9;  // of any rate or size: times and bytes that follow are finite

double positive(const Reader& value) {
    const double number = value.number();
    value.require(number >= least && number <= most, "a number from 1e-9 to 1e9");
    return number;
}

RateBySize rates_of(const Reader& value) {
    value.require(value.value().is_object() && !value.value().empty(), "an object of rates by size");
    RateBySize rates;
    for (const auto& [size, rate] : value.value().items()) {
        char* end = nullptr;
        const double at = std::strtod(size.c_str(), &end);
        value.require(*end == '\0' && at >= least && at <= most, "sizes from 1e-9 to 1e9 as keys");
        rates[at] = positive(value[size]);
    }
    return rates;
}

/// "NVIDIA GeForce RTX 4090" and "rtx_4090" are one name.
std::string plain(const std::string& name) {
    std::string letters;
    for (const char c : name)
        if (std::isalnum(static_cast<unsigned char>(c)))
            letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* word : {"nvidia", "geforce"})
        if (const std::size_t at = letters.find(word); at != std::string::npos)
            letters.erase(at, std::string(word).size());
    return letters;
}

const std::vector<Card>& built_in_cards() {
    static const std::vector<Card> cards = [] {
        std::vector<Card> all;
        for (const char* text : spec::card_files()) all.push_back(parse_card(text, "a built-in card"));
        return all;
    }();
    return cards;
}

/// Other chips and memory than the card of that number has.
bool is_laptop(const std::string& name) {
    static const std::regex words("laptop|mobile|max-q", std::regex::icase);
    return std::regex_search(name, words);
}

/// Whether the name has the number at the end of `own` as a whole number: A1000 does not have that of A100.
bool names_series(const std::string& name, const std::string& own) {
    std::size_t digits = own.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(own[digits - 1])) != 0) --digits;
    const std::string number = own.substr(digits);
    for (std::size_t at = name.find(number); at != std::string::npos; at = name.find(number, at + 1)) {
        const std::size_t end = at + number.size();
        if (end == name.size() || std::isdigit(static_cast<unsigned char>(name[end])) == 0) return true;
    }
    return false;
}

/// Null: there is none.
const Card* built_in_card(const std::string& name) {
    if (is_laptop(name)) return nullptr;
    const std::string wanted = plain(name);
    const Card* found = nullptr;  // the longest name that the wanted one begins with: "NVIDIA H100 80GB HBM3"
    for (const Card& card : built_in_cards()) {
        const std::string own = plain(card.name);
        if (wanted.starts_with(own) && names_series(name, own) &&
            (found == nullptr || own.size() > plain(found->name).size()))
            found = &card;
    }
    return found;
}

}  // namespace

double rate_at(const RateBySize& rates, double size) {
    UNSLOTH_CHECK(!rates.empty(), "no rates");
    const auto above = rates.lower_bound(size);
    if (above == rates.end()) return rates.rbegin()->second;
    if (above == rates.begin()) return above->second;
    const auto below = std::prev(above);
    const double share = std::log(size / below->first) / std::log(above->first / below->first);
    return below->second + share * (above->second - below->second);
}

Card parse_card(const std::string& text, const std::string& source) {
    const Json json = parse_json<Json>(text, source);
    const Reader read(json, source);
    constexpr double gib = 1 << 30;
    Card card;
    card.name = read.at("name").string();
    card.source = read.at("source").string();
    card.measured = read.at("measured").boolean();
    card.compute_capability = positive(read.at("compute_capability"));
    card.memory_bytes = static_cast<int64_t>(positive(read.at("memory_gib")) * gib);
    card.context_bytes = static_cast<int64_t>(positive(read.at("context_gib")) * gib);
    card.products = rates_of(read.at("products_tflops"));
    if (read.has("fp8_products_tflops")) card.fp8_products = rates_of(read.at("fp8_products_tflops"));
    if (read.has("int8_products_tflops")) card.int8_products = rates_of(read.at("int8_products_tflops"));
    if (read.has("nf4_products_ms")) card.nf4_products = rates_of(read.at("nf4_products_ms"));
    card.attention_forward = rates_of(read.at("attention_forward_tflops"));
    card.attention_backward = rates_of(read.at("attention_backward_tflops"));
    card.copy = positive(read.at("copy_gbs"));
    card.thin = positive(read.at("thin_gbs"));
    card.dequantise = positive(read.at("dequantise_gbs"));
    card.link = positive(read.at("link_gbs"));
    card.peer = card.link;
    if (read.has("peers")) {
        const Reader peers = read.at("peers");
        card.peer_over = peers.at("over").string();
        card.peer_reach = peers.at("reach").boolean();
        card.peer = positive(peers.at("gbs"));
        card.peer_us = positive(peers.at("us"));
    }
    card.disk = positive(read.at("disk_gbs"));
    card.layer_gap_us = positive(read.at("layer_gap_us"));
    if (card.context_bytes >= card.memory_bytes)
        throw Error("json.wrong-value", cat(source, ": context_gib leaves nothing of memory_gib"));
    return card;
}

std::vector<std::string> card_names() {
    std::vector<std::string> names;
    for (const Card& card : built_in_cards()) names.push_back(card.name);
    return names;
}

Card card_of_memory(int64_t bytes) {
    const std::vector<Card>& cards = built_in_cards();
    return *std::min_element(cards.begin(), cards.end(), [&](const Card& a, const Card& b) {
        const int64_t off_a = std::abs(a.memory_bytes - bytes), off_b = std::abs(b.memory_bytes - bytes);
        return off_a != off_b ? off_a < off_b : a.compute_capability > b.compute_capability;
    });
}

namespace {

/// 40 of "A100-SXM4-40GB"; nothing in a name without a size.
std::optional<double> gib_in(const std::string& name) {
    std::smatch found;
    static const std::regex size(R"((\d+) ?g(b|ib)?\b)", std::regex::icase);
    return std::regex_search(name, found, size) ? std::optional(std::stod(found[1])) : std::nullopt;
}

}  // namespace

Card find_card(const std::string& name_or_file) {
    if (name_or_file.ends_with(".json")) return parse_card(read_file(name_or_file), name_or_file);
    if (const Card* known = built_in_card(name_or_file); known) {
        Card card = *known;
        // Some cards come with more than one size of memory; a driver keeps about a hundredth.
        constexpr double gib = 1 << 30, usable = 0.985;
        const auto bytes = static_cast<double>(card.memory_bytes);
        if (const auto size = gib_in(name_or_file); size && std::abs(*size * gib - bytes) > bytes / 10) {
            card.memory_bytes = static_cast<int64_t>(*size * usable * gib);
            card.name = name_or_file;
        }
        return card;
    }
    // 4090 of "RTX 4090".
    if (!name_or_file.empty() && name_or_file.find_first_not_of("0123456789") == std::string::npos &&
        built_in_card("RTX " + name_or_file))
        return find_card("RTX " + name_or_file);
    std::string names;
    for (const std::string& name : card_names()) names += (names.empty() ? "" : ", ") + name;
    throw Error("device.unknown-card", cat("--gpu: '", name_or_file, "' is not known"),
                cat("Known are ", names, "; another one is described by a JSON file of the form of cards/*.json."));
}

Card card_of_driver(const std::string& name, double compute_capability, bool& known) {
    if (const Card* card = built_in_card(name)) {
        known = true;
        return *card;
    }
    known = false;
    const std::vector<Card>& cards = built_in_cards();
    const Card* like = &cards.front();
    const auto distance = [&](const Card& card) {  // an older card rather than a newer one: too slow is the safer guess
        const double ahead = card.compute_capability - compute_capability;
        return ahead > 0 ? 100 * ahead : -ahead;
    };
    for (const Card& card : cards)
        if (distance(card) < distance(*like)) like = &card;
    Card result = *like;
    result.name = name;
    return result;
}

}  // namespace unsloth::planner
