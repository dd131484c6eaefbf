// Facts of this build; CMake names them for this file alone (Modules.cmake), so that another commit compiles nothing
// else.
#include "app/build_facts.h"

namespace unsloth::app {

BuildFacts build_facts() {
    return {UNSLOTH_BUILD_COMMIT, UNSLOTH_BUILD_TYPE, __VERSION__,
            UNSLOTH_BUILD_TORCH,  UNSLOTH_BUILD_CUDA, UNSLOTH_BUILD_ARCHITECTURES};
}

}  // namespace unsloth::app
