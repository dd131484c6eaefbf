#include <cstdio>

#include "app/commands.h"
#include "app/paths.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/shell_word.h"
#include "unsloth/core/utf8.h"
#include "unsloth/import/import.h"

namespace unsloth::app {
namespace {

std::string imported_json(const import::ImportedConfig& imported) {
    const Json result = {{"program", imported.program}, {"carried", imported.carried},
                         {"notes", imported.notes},     {"losses", imported.losses},
                         {"aside", imported.aside},     {"config", Json::parse(imported.json)}};
    return result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

bool run_import(const CommandLine& line) {
    const ImportRequest& request = line.importing;
    const import::ImportedConfig imported = import::import_config(request.path, request.from);
    const auto tell = [](const std::string& text) { std::fprintf(stderr, "%s\n", printable(text).c_str()); };
    if (request.json) {
        print(imported_json(imported));
        return !request.strict || imported.losses.empty();
    }
    for (const std::string& note : imported.notes) tell("note: " + note);
    for (const std::string& loss : imported.aside) tell("not carried over, no effect on training: " + loss);
    for (const std::string& loss : imported.losses) tell("not carried over: " + loss);
    const std::string aside =
        imported.aside.empty() ? "" : cat(" (and ", imported.aside.size(), " that do not affect training)");
    tell(cat(request.path, ", as ", imported.program, ": ", imported.carried, " fields carried over, ",
             imported.losses.size(), " not", aside));
    if (request.strict && !imported.losses.empty()) return false;
    if (request.out.empty()) {
        print(imported.json);
    } else {
        write_file_atomically(request.out, imported.json);
        tell(cat("written: ", request.out, "; unsloth-train data --config ", shell_word(request.out),
                 " shows its rows"));
    }
    return true;
}

}  // namespace unsloth::app
