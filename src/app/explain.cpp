#include "app/explain.h"

#include <algorithm>
#include <vector>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::app {
namespace {

constexpr std::size_t most_suggestions = 8;

/// "data.empty" of "error[data.empty]:".
std::string bare_id(const std::string& name) {
    const std::size_t open = name.find('[');
    return open == std::string::npos ? name : name.substr(open + 1, name.find(']') - open - 1);
}

/// The names that one edit or two make of `name`; else those of which it is a part, or that have its area.
std::vector<std::string> meant_by(const std::string& name) {
    std::vector<std::string> all, related;
    const std::string area = name.substr(0, name.find('.')) + ".";
    for (const KnownErrorId& known : known_error_ids) {
        all.emplace_back(known.name);
        if ((!name.empty() && all.back().find(name) != std::string::npos) || all.back().starts_with(area))
            related.push_back(all.back());
    }
    std::vector<std::string> found = nearest(name, all);
    if (found.empty()) found = std::move(related);
    found.resize(std::min(found.size(), most_suggestions));
    return found;
}

template <class Use>
void for_each_id(const Use& use) {
    for (const KnownErrorId& known : known_error_ids) use(known, text_of(*ErrorId::find(known.name)));
}

}  // namespace

std::string explanation(std::string name) {
    name = bare_id(name);
    const auto id = ErrorId::find(name);
    if (!id) {
        const std::string meant = did_you_mean(meant_by(name));
        throw Error("option.invalid-value", cat("there is no error id '", name, "'"),
                    meant.empty() ? "unsloth-train explain lists all ids." : meant);
    }
    const ErrorText& text = text_of(*id);
    return cat(id->name(), " (exit code ", static_cast<int>(id->kind()), ")\n\n", text.meaning,
               "\n\nWhat to do: ", text.remedy, "\n");
}

std::string error_ids_list() {
    std::size_t width = 0;
    for (const KnownErrorId& known : known_error_ids) width = std::max(width, known.name.size());
    std::string list;
    for_each_id([&](const KnownErrorId& known, const ErrorText& text) {
        list += cat(known.name, std::string(width + 2 - known.name.size(), ' '), text.meaning, "\n");
    });
    return list;
}

std::string error_ids_markdown() {
    std::string table = "| id | exit code | meaning | what to do |\n| -- | -- | -- | -- |\n";
    for_each_id([&](const KnownErrorId& known, const ErrorText& text) {
        table += cat("| `", known.name, "` | ", static_cast<int>(known.kind), " | ", text.meaning, " | ", text.remedy,
                     " |\n");
    });
    return table;
}

void run_explain(const CommandLine& line) {
    if (line.explain.markdown)
        print(error_ids_markdown());
    else
        print(line.explain.id.empty() ? error_ids_list() : explanation(line.explain.id));
}

}  // namespace unsloth::app
