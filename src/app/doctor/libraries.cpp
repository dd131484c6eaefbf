#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "app/doctor/findings.h"
#include "app/engine_loader.h"
#include "unsloth/core/error.h"

namespace unsloth::app {
namespace fs = std::filesystem;
namespace {

// Beginnings of the file names that tell how a run computes; the rest (libc, compression, …) is the system's business.
constexpr const char* telling[] = {"libunsloth", "libtorch", "libc10",   "libcuda",  "libcudart", "libcublas",
                                   "libcudnn",   "libnccl",  "libcupti", "libnvrtc", "libgomp",   "libnvidia"};

int note_library(dl_phdr_info* info, std::size_t, void* into) {
    const fs::path path = info->dlpi_name;
    const std::string name = path.filename();
    if (std::any_of(std::begin(telling), std::end(telling), [&](const char* stem) { return name.starts_with(stem); }))
        (*static_cast<std::map<std::string, std::vector<std::string>>*>(into))[path.parent_path().lexically_normal()]
            .push_back(name);
    return 0;
}

/// The telling libraries that are loaded now, by folder.
Finding loaded_libraries() {
    std::map<std::string, std::vector<std::string>> by_folder;
    ::dl_iterate_phdr(note_library, &by_folder);
    Finding finding{Verdict::ok, "loaded", "", ""};
    for (auto& [folder, names] : by_folder) {
        std::sort(names.begin(), names.end());
        finding.value += cat(finding.value.empty() ? "" : "\n", folder, ":");
        for (const std::string& name : names) finding.value += cat(" ", name);
    }
    return finding;
}

/// NCCL's own number, asked of the library that LibTorch brought.
std::vector<Finding> nccl_version() {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
    if (library == nullptr) return {};
    auto* const ask = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
    int number = 0;
    const bool known = ask != nullptr && ask(&number) == 0;
    ::dlclose(library);
    if (!known)
        return {{Verdict::warn, "NCCL", "does not say its version",
                 "Several GPUs may not work; scripts/setup.sh fetches the library that belongs to LibTorch."}};
    return {{Verdict::ok, "NCCL", cat(number / 10000, ".", number / 100 % 100, ".", number % 100), ""}};
}

}  // namespace

std::vector<Finding> check_libraries(const config::Config&) {
    try {
        load_engine();
    } catch (const Error& failure) {
        const std::string text = failure.what();
        const std::size_t end = std::min(text.find("\n  "), text.size());
        return {{Verdict::broken, "engine", text.substr(0, end), end < text.size() ? text.substr(end + 3) : ""}};
    }
    std::vector<Finding> findings{{Verdict::ok, "engine", "opens", ""}, loaded_libraries()};
    for (Finding& finding : nccl_version()) findings.push_back(std::move(finding));
    return findings;
}

}  // namespace unsloth::app
