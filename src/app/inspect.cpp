#include "unsloth/formats/inspect.h"

#include "app/commands.h"

namespace unsloth::app {

bool run_inspect(const CommandLine& line) {
    const formats::Inspection inspection = formats::inspect_path(line.inspect.path);
    print(line.inspect.json ? formats::inspect_json(inspection) : formats::inspect_text(inspection));
    return inspection.ok();
}

}  // namespace unsloth::app
