// Libraries of this program that are opened when a command first needs them, so that other commands do not pay for what
// they link.
#pragma once

#include <string>

namespace unsloth {

/// A shared library in the folder of libunsloth_base.so; it stays open.
class SharedLibrary {
  public:
    explicit SharedLibrary(const char* file);

    /// Sets `function` to the symbol of this name; null, with missing() saying why, where there is none.
    template <class Function>
    void find(Function*& function, const char* name) {
        function = reinterpret_cast<Function*>(symbol(name));
    }
    /// Why the library, or the first symbol that was not found, cannot be used; empty: all is there.
    const std::string& missing() const { return missing_; }

  private:
    void* symbol(const char* name);

    void* handle_ = nullptr;
    std::string missing_;
};

}  // namespace unsloth
