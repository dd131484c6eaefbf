#include "unsloth/formats/inspect.h"

#include "app/commands.h"

namespace unsloth::app {

bool run_inspect(const CommandLine& line) {
    const Inspection inspection = inspect_path(line.inspect.path);
    print(line.inspect.json ? inspect_json(inspection) : inspect_text(inspection));
    return inspection.ok();
}

}  // namespace unsloth::app
