// A folder that was opened and checked once. What is made, replaced and removed in it goes by its descriptor, so that
// no link leads elsewhere, whatever other users put there meanwhile.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/core/open_file.h"

namespace unsloth {

/// An open folder; copies share it. Names are those of its entries; a link among them is never followed.
class Folder {
  public:
    /// A folder that the user named. Links on the way are followed. In a folder that others may write into and that has
    /// the sticky bit, they must belong to this user, to root or to the folder's owner: else a runtime Error. Not open,
    /// with failure(), when the system refuses.
    static Folder named(const std::filesystem::path& path);
    /// The same. What is missing of the path is made.
    static Folder made(const std::filesystem::path& path);
    /// A folder below that this program keeps for itself; `names` may be several. Runtime Error for a link, and for one
    /// of another user (Owner). A path that leads out of this folder is the user's own: as named() or made().
    Folder below(const std::filesystem::path& names, Owner owner = Owner::ours) const;
    Folder made_below(const std::filesystem::path& names, Owner owner = Owner::ours) const;

    bool open() const { return fd_ != nullptr; }
    int failure() const { return failure_; }  ///< errno; 0: it is open
    /// This folder; runtime Error, with the system's reason, when it is not open.
    const Folder& require() const;

    /// For openat and its kin, not for reading; -1: not open.
    int fd() const { return fd_ ? fd_->get() : -1; }
    const std::filesystem::path& path() const { return path_; }  ///< as it was named
    std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

    /// The names of its entries, in no order; none where it cannot be read.
    std::vector<std::string> names() const;
    /// What the system says of an entry, of a link itself; nullopt: there is none.
    std::optional<struct stat> look(const std::string& name) const;
    /// Whether an entry belongs to this user, to root or to the owner of the folder.
    bool owns(const struct stat& entry) const;
    /// Whether an open file still has this name: somebody may have removed or replaced it since.
    bool has(const std::string& name, int file) const;
    /// Where a link leads that may be followed as named() does; nullopt: it is no link.
    std::optional<std::filesystem::path> link_target(const std::string& name) const;

    /// Renames an entry, also over another one. False, with errno, when the system refuses.
    bool rename(const std::string& from, const std::string& to) const;
    /// Removes an entry with all that is in it, if there is one. False, with errno, when something stays.
    bool remove(const std::string& name) const;
    void remove_or_warn(const std::string& name) const;
    /// Flushes its entries to the medium; runtime Error on failure.
    void sync() const;

  private:
    struct Way;
    Folder(std::filesystem::path path, Descriptor fd, int failure);
    static Folder walk(Descriptor from, const std::filesystem::path& path, const std::filesystem::path& way,
                       const Way& rules);
    Folder enter(const std::filesystem::path& names, Owner owner, bool makes) const;

    std::filesystem::path path_;
    std::shared_ptr<const Descriptor> fd_;
    int failure_ = 0;
};

/// What the user named, by the folder that holds it.
struct Place {
    Folder folder;
    std::string name;

    std::filesystem::path path() const { return folder / name; }
};
/// Folder::named() of the path's parent, and its last component.
Place place_of(const std::filesystem::path& path);

}  // namespace unsloth
