#include "unsloth/core/shared_library.h"

#include <dlfcn.h>

#include <filesystem>

namespace unsloth {
namespace {

void here() {}

}  // namespace

SharedLibrary::SharedLibrary(const char* file) {
    Dl_info own{};
    ::dladdr(reinterpret_cast<const void*>(&here), &own);
    const std::filesystem::path path = std::filesystem::path(own.dli_fname).parent_path() / file;
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) missing_ = ::dlerror();
}

void* SharedLibrary::symbol(const char* name) {
    if (handle_ == nullptr) return nullptr;
    void* const found = ::dlsym(handle_, name);
    if (found == nullptr && missing_.empty()) missing_ = ::dlerror();
    return found;
}

}  // namespace unsloth
