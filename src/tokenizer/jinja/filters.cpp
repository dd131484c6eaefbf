#include "tokenizer/jinja/filters.h"

#include <algorithm>
#include <array>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

/// Jinja's filters that no chat template has a use for: for web pages, or random.
constexpr std::array<std::string_view, 8> left_out = {"filesizeformat", "groupby", "pprint",   "random",
                                                      "striptags",      "urlize",  "wordwrap", "xmlattr"};

}  // namespace

const FilterEntry* find_filter(std::string_view name) {
    for (const FilterEntry* table : {text_filters, sequence_filters, number_filters}) {
        for (; table->function; ++table) {
            if (table->name == name) return table;
        }
    }
    return nullptr;
}

std::string unknown_filter(std::string_view name) {
    const bool known = std::find(left_out.begin(), left_out.end(), name) != left_out.end();
    return known ? cat("the filter '", name, "' is not supported in chat templates")
                 : cat("no filter named '", name, "'");
}

}  // namespace unsloth::tokenizer::jinja
