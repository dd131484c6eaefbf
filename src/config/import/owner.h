// Whose a configuration file is, by the names of its fields.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "config/import/importer.h"
#include "config/json.h"
#include "unsloth/config/import.h"

namespace unsloth::config {

/// A program whose files import-config reads.
struct Peer {
    PeerProgram program;
    const char* name;     ///< "axolotl"
    const char* release;  ///< of which all fields are known: "axolotl 0.19.0"
    void (*import)(Importer&);
    std::vector<const char*> marks;  ///< fields that its files have and few others
};

const Peer& peer_of(PeerProgram program);

struct FileOwner {
    const Peer* peer = nullptr;
    bool ours = false;
    std::string name;                ///< "axolotl", "DeepSpeed"; empty: not known
    std::vector<std::string> marks;  ///< fields that say so
    std::string advice;              ///< what to do with a file that import-config does not read

    std::string shown_marks() const;
};

/// `fields`: an object. The more of a program's marks a file has, the likelier it is that program's; of several peers
/// the one that knows most of its fields.
FileOwner owner_of(const Json& fields);

/// The file as that program reads it. Files that it names are looked for from `folder` on.
std::unique_ptr<Importer> read_as(const Peer& peer, const Json& fields, const std::filesystem::path& folder);

}  // namespace unsloth::config
