#include "unsloth/import/import.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "import/importer.h"
#include "unsloth/config/file_owner.h"
#include "unsloth/config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

/// A program whose files are read.
struct Peer {
    PeerProgram program;
    const char* name;     ///< as config::peer_marks() has it
    const char* release;  ///< of which all fields are known
    void (*import)(Importer&);

    std::unique_ptr<Importer> read(const Json& fields, const std::filesystem::path& folder) const {
        auto importer = std::make_unique<Importer>(fields, folder);
        import(*importer);
        return importer;
    }
};

constexpr Peer peers[] = {{PeerProgram::axolotl, "axolotl", "axolotl 0.19.0", import_axolotl},
                          {PeerProgram::llama_factory, "LLaMA-Factory", "LLaMA-Factory 0.9.5", import_llama_factory},
                          {PeerProgram::trl, "TRL or Unsloth", "TRL 1.16.0 and Unsloth 2026.10.9", import_trl},
                          {PeerProgram::swift, "ms-swift", "ms-swift 4.6.0", import_swift},
                          {PeerProgram::studio, "Unsloth Studio", "Unsloth Studio 2026.8", import_studio}};

template <class Is>
const Peer& peer_that(const Is& is) {
    const auto found = std::find_if(std::begin(peers), std::end(peers), is);
    UNSLOTH_CHECK(found != std::end(peers), "a program without a reader");
    return *found;
}

/// Of the programs with marks in the file, the one that knows most of its fields.
const Peer& most_likely_peer(const Json& fields) {
    const Peer* best = nullptr;
    int64_t fewest_unknown = 0;
    for (const config::PeerMarks& one : config::peer_marks()) {
        if (config::present_marks(fields, one.marks).empty()) continue;
        const Peer& peer = peer_that([&](const Peer& other) { return std::string(other.name) == one.name; });
        const int64_t unknown = peer.read(fields, "")->unknown_fields();
        if (best != nullptr && unknown >= fewest_unknown) continue;
        fewest_unknown = unknown;
        best = &peer;
    }
    UNSLOTH_CHECK(best != nullptr, "a file of a peer without its marks");
    return *best;
}

const Peer& peer_for(const Json& fields, PeerProgram wanted, const std::string& file) {
    const config::FileOwner owner = config::owner_of(fields);
    // A word on the command line decides between peers, not what import-config can read.
    const bool unreadable = !owner.ours && !owner.importable && !owner.name.empty();
    if (unreadable)
        throw Error("import.wrong-program",
                    cat(file, " is of ", owner.name, " (", owner.shown_marks(), "), which import-config does not read"),
                    owner.advice);
    const bool studio = owner.importable && owner.name == std::string("Unsloth Studio");
    if (wanted == PeerProgram::automatic && studio)
        return peer_that([](const Peer& one) { return one.program == PeerProgram::studio; });
    if (wanted != PeerProgram::automatic) return peer_that([&](const Peer& one) { return one.program == wanted; });
    if (owner.ours)
        throw Error("import.wrong-program", cat(file, " is a configuration of this program already"),
                    cat("unsloth-train ", file));
    if (owner.importable) return most_likely_peer(fields);
    throw Error(
        "import.wrong-program",
        cat(file,
            " is no configuration of axolotl, LLaMA-Factory, TRL, Unsloth or ms-swift, as far as its fields tell"),
        "--from axolotl, llamafactory, trl or swift says whose it is.");
}

}  // namespace

ImportedConfig import_config(const std::filesystem::path& file, PeerProgram program) {
    const Json fields = config::read_tree(file);
    if (!fields.is_object())
        throw Error("config.not-an-object", cat(file.string(), ": expected an object of fields at the top"));
    const Peer& peer = peer_for(fields, program, file.string());
    const auto importer = peer.read(fields, file.parent_path());
    const auto all = static_cast<int64_t>(fields.size());
    if (program == PeerProgram::automatic && 2 * importer->unknown_fields() > all)
        throw Error("import.wrong-program",
                    cat(file.string(), " seems to be of ", peer.name, ", which does not have ",
                        importer->unknown_fields(), " of its ", all, " fields"),
                    "--from axolotl, llamafactory, trl or swift says whose it is.");
    return importer->finish(peer.release);
}

}  // namespace unsloth::import
