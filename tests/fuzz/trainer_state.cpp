// trainer_state.json of a checkpoint.
// parser: src/formats/trainer_state.cpp
// options: -max_len=4096 -dict=tests/fuzz/json.dict
#include "unsloth/formats/trainer_state.h"
#include "fuzz/support.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace unsloth;
    static const fuzz::Folder folder;
    folder.write("trainer_state.json", fuzz::text_of(data, size));
    formats::TrainerState state;
    if (!fuzz::accepts([&] { state = formats::read_trainer_state(folder.path()); })) return 0;
    const std::string written = formats::trainer_state_json(state);
    folder.write("trainer_state.json", written);
    fuzz::require(formats::trainer_state_json(formats::read_trainer_state(folder.path())) == written,
                  "trainer_state.json changes when it is read and written");
    return 0;
}
