#include "unsloth/config/import.h"

#include "config/import/owner.h"
#include "config/read_tree.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

const Peer& peer_for(const Json& fields, PeerProgram wanted, const std::string& file) {
    const FileOwner owner = owner_of(fields);
    // A word on the command line decides between peers, not what import-config can read.
    const bool unreadable = !owner.ours && owner.peer == nullptr && !owner.name.empty();
    if (unreadable)
        throw Error("import.wrong-program",
                    cat(file, " is of ", owner.name, " (", owner.shown_marks(), "), which import-config does not read"),
                    owner.advice);
    if (wanted != PeerProgram::automatic) return peer_of(wanted);
    if (owner.ours)
        throw Error("import.wrong-program", cat(file, " is a configuration of this program already"),
                    cat("unsloth-train ", file));
    if (owner.peer != nullptr) return *owner.peer;
    throw Error("import.wrong-program",
                cat(file, " is no configuration of axolotl, LLaMA-Factory, TRL or Unsloth, as far as its fields tell"),
                "--from axolotl, llamafactory or trl says whose it is.");
}

}  // namespace

ImportedConfig import_config(const std::filesystem::path& file, PeerProgram program) {
    const Json fields = read_tree(file);
    if (!fields.is_object())
        throw Error("config.not-an-object", cat(file.string(), ": expected an object of fields at the top"));
    const Peer& peer = peer_for(fields, program, file.string());
    const auto importer = read_as(peer, fields, file.parent_path());
    const auto all = static_cast<int64_t>(fields.size());
    if (program == PeerProgram::automatic && 2 * importer->unknown_fields() > all)
        throw Error("import.wrong-program",
                    cat(file.string(), " seems to be of ", peer.name, ", which does not have ",
                        importer->unknown_fields(), " of its ", all, " fields"),
                    "--from axolotl, llamafactory or trl says whose it is.");
    return importer->finish(peer.release);
}

}  // namespace unsloth::config
