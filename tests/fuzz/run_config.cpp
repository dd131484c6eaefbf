// The configuration file of a run.
// parser: src/config/*.cpp
// seeds: configs
// options: -max_len=4096 -dict=tests/fuzz/json.dict
#include "fuzz/support.h"
#include "unsloth/config/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const fuzz::Folder folder;
    const auto file = folder.write("run.json", fuzz::text_of(data, size));
    config::LoadedConfig loaded;
    if (!fuzz::accepts([&] { loaded = config::load_config(file, {}); })) return 0;
    const std::string written = config::config_to_json(loaded.config);
    folder.write("run.json", written);
    fuzz::require(config::config_to_json(config::load_config(file, {}).config) == written,
                  "the configuration changes when it is written and read");
    return 0;
}
