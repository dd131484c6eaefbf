#include <cstdio>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/utf8.h"
#include "unsloth/import/import.h"

namespace unsloth::app {

bool run_import(const CommandLine& line) {
    const ImportRequest& request = line.importing;
    const import::ImportedConfig imported = import::import_config(request.path, request.from);
    const auto tell = [](const std::string& text) { std::fprintf(stderr, "%s\n", printable(text).c_str()); };
    for (const std::string& note : imported.notes) tell("note: " + note);
    for (const std::string& loss : imported.losses) tell("not carried over: " + loss);
    tell(cat(request.path, ", as ", imported.program, ": ", imported.carried, " fields carried over, ",
             imported.losses.size(), " not"));
    if (request.strict && !imported.losses.empty()) return false;
    if (request.out.empty()) {
        print(imported.json);
    } else {
        write_file_atomically(request.out, imported.json);
        tell(cat("written: ", request.out, "; unsloth-train data --config ", request.out, " shows its rows"));
    }
    return true;
}

}  // namespace unsloth::app
