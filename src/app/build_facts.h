// What --version and doctor say of the build.
#pragma once

namespace unsloth::app {

/// Texts; empty where the build does not know.
struct BuildFacts {
    const char *commit, *type, *compiler;
    const char* torch;          ///< LibTorch's version
    const char* cuda;           ///< the compiler's version
    const char* architectures;  ///< of the kernels: "80-real;90a-real;120"
};
BuildFacts build_facts();

}  // namespace unsloth::app
