// The temporary names under which files and folders are filled, TARGET.tmp-RANDOM, and what killed processes leave of
// them.
#pragma once

#include <filesystem>
#include <string>

#include "unsloth/core/folder.h"
#include "unsloth/core/lost_map.h"
#include "unsloth/core/open_file.h"

namespace unsloth {

/// A file or folder that is filled next to its target, so that a rename can put it there. Its name cannot be predicted,
/// so no other process can have taken it. Until the rename it is marked as one that is being filled (flock: when the
/// process ends, however that happens, the mark is gone).
class Temporary {
  public:
    enum class Kind { file, folder };

    /// Makes it, empty, and open (a file for reading and writing), and removes what killed processes left of the same
    /// target. Runtime Error, with the system's reason, when it cannot
    /// be made, and when `target` of a file is a FIFO or a device, whose place it would take.
    Temporary(Place target, Kind kind);
    /// Of a path that the user named.
    Temporary(const std::filesystem::path& target, Kind kind) : Temporary(place_of(target), kind) {}
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    /// Removes it with all that is in it, unless rename_to_target() or keep() was called.
    ~Temporary();

    const Place& target() const { return target_; }
    const Folder& folder() const { return target_.folder; }  ///< in which both are
    std::filesystem::path path() const { return folder() / name_; }
    /// Open as long as the object lives and the descriptor is not released; the mark lives as long as a copy of it
    /// (dup).
    int fd() const { return file_.get(); }
    /// Takes the place of what is there; runtime Error when the system refuses: then it is still temporary.
    void rename_to_target();
    bool renamed() const { return stays_; }
    /// Stays where it is, under its temporary name, until the next one of its target is made.
    void keep() noexcept;
    /// Closes the descriptor; false, with errno, when the system reports a late failure.
    bool close() noexcept;

  private:
    void make_file();
    void make_folder();
    bool claim();
    [[noreturn]] void refuse(const std::string& reason, int code = 0) const;

    Kind kind_;
    Place target_;
    std::string name_;  ///< its own
    Descriptor file_;
    Watched watched_;  ///< removed too when a map is lost
    bool stays_ = false;
};

/// What a Temporary file of this target would throw where nothing may be created, without creating anything.
void require_creatable(const std::filesystem::path& target);

/// TARGET.WORD-RANDOM, which cannot be predicted.
std::string sibling_name(const std::string& target, const char* word);

/// Removes an entry with all that is in it, unless a process holds it (flock), where the file system has locks. False,
/// with errno, when it stays.
bool remove_unless_held(const Folder& folder, const std::string& name);

/// Removes every TARGET.tmp-RANDOM that no process fills: a process that was killed left it. What cannot be opened,
/// locked or removed stays (a debug line says why): all names differ, so it blocks no other file.
void remove_abandoned(const Place& target);

}  // namespace unsloth
