// Whose a configuration file is, by the names of its fields.
#pragma once

#include <string>
#include <vector>

#include "unsloth/config/json.h"

namespace unsloth::config {

/// A program whose files import-config reads; the module import has the readers.
struct PeerMarks {
    const char* name;                ///< "axolotl"
    std::vector<const char*> marks;  ///< fields that its files have and few others
};

const std::vector<PeerMarks>& peer_marks();

/// Those of `marks` that `fields` has.
std::vector<std::string> present_marks(const Json& fields, const std::vector<const char*>& marks);

struct FileOwner {
    bool ours = false, importable = false;
    std::string name;                ///< "axolotl", "DeepSpeed"; empty: not known
    std::vector<std::string> marks;  ///< fields that say so
    std::string advice;              ///< what to do with a file that import-config does not read

    std::string shown_marks() const;
};

/// `fields`: an object. The more of a program's marks a file has, the likelier it is that program's.
FileOwner owner_of(const Json& fields);

}  // namespace unsloth::config
