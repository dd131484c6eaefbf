#include "app/engine_loader.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "unsloth/config/allocator.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

namespace unsloth::app {
namespace {

constexpr const char* engine_file = "libunsloth_engine.so";
constexpr const char* entry_name = "unsloth_create_engine";

// dlerror() says "NAME: cannot open shared object file: …" for the engine's own missing dependencies too.
Error not_loaded(const std::filesystem::path& engine, const std::string& reason) {
    const auto missing = reason.find(": cannot open shared object file");
    if (missing == std::string::npos)
        return Error("library.cannot-load", cat("cannot load the engine: ", reason),
                     "It may belong to another build or LibTorch version; scripts/build.sh builds it again.");
    const std::string library = reason.substr(0, missing);
    return Error("library.cannot-load",
                 cat("cannot load the engine ", engine.string(), ": it needs ", library, ", which was not found"),
                 cat("Run scripts/setup.sh (after an installation by pip: pip check), or add the folder that holds ",
                     library, " to LD_LIBRARY_PATH."));
}

/// How many threads of others want a CPU: the last minute's load, or those that run now, where they began just before.
double others_running() {
    double load = 0;
    int64_t running = 1;                                                // this one
    std::ifstream("/proc/loadavg") >> load >> load >> load >> running;  // "0.20 0.18 0.12 1/80 11206"
    return std::max(::getloadavg(&load, 1) == 1 ? load : 0, static_cast<double>(running - 1));
}

/// OpenMP's threads wait for each other by spinning, libgomp's for some 10 ms at every barrier: where other programs
/// want the CPUs, a step of a small model took five times as long. They sleep sooner, and at once where others compute
/// already; others may begin later. libgomp reads the variable when it is loaded.
void sleep_at_barriers() {
    cpu_set_t allowed;
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    constexpr double noise = 0.5;  // of a quiet machine's load
    const double others = others_running();
    const bool alone = others + CPU_COUNT(&allowed) <= static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)) + noise;
    ::setenv("GOMP_SPINCOUNT", alone ? "10000" : "1000", 0);
    log::debug(others, " threads of others, ", CPU_COUNT(&allowed), " CPUs: GOMP_SPINCOUNT is ",
               std::getenv("GOMP_SPINCOUNT"));
}

}  // namespace

std::unique_ptr<engine_api::Engine> load_engine() {
    sleep_at_barriers();
    const auto path = own_executable().parent_path() / engine_file;
    if (!std::filesystem::exists(path))
        throw Error("library.cannot-load", cat("the engine ", path.string(), " is missing"),
                    "It belongs next to the executable; scripts/build.sh makes both.");
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw not_loaded(path, ::dlerror());
    auto* const create = reinterpret_cast<decltype(&unsloth_create_engine)>(::dlsym(library, entry_name));
    if (create == nullptr) throw not_loaded(path, ::dlerror());
    return std::unique_ptr<engine_api::Engine>(create());
}

std::unique_ptr<engine_api::Engine> load_engine(const config::Config& config) {
    // LibTorch reads the variables once, when it is loaded, and of the two the newer name first.
    if (const std::string settings = config::allocator_settings(config.hardware); !settings.empty()) {
        ::unsetenv("PYTORCH_ALLOC_CONF");
        ::setenv("PYTORCH_CUDA_ALLOC_CONF", settings.c_str(), 1);
    }
    return load_engine();
}

}  // namespace unsloth::app
