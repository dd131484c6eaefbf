// libunsloth_hub.so, which alone links libcurl: opened when it is first needed.
#pragma once

#include "unsloth/core/error.h"
#include "unsloth/core/shared_library.h"

namespace unsloth::hub {

/// A function of the library by its name. `does`: what it is for, as "downloads". Error library.cannot-load where there
/// is none.
template <class Function>
Function* library_function(const char* name, const char* does) {
    static SharedLibrary library("libunsloth_hub.so");
    Function* found = nullptr;
    library.find(found, name);
    if (found == nullptr)
        throw Error("library.cannot-load", cat("the library that ", does, " cannot be opened: ", library.missing()),
                    "It is in the executable's folder; scripts/build.sh makes both.");
    return found;
}

}  // namespace unsloth::hub
