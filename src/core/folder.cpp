#include "unsloth/core/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

constexpr const char* planted_advice =
    "Somebody else may have put it there. Look at it and remove it, or choose another folder.";
constexpr int deepest = 32;  // this program makes nothing deeper

std::string shown(const fs::path& folder) {
    return folder.empty() ? "." : folder.string();
}

/// Whether only this user, root or the owner of the folder can have made what is there.
bool is_trusted(uid_t owner, int folder) {
    struct stat holder{};
    return owner == ::geteuid() || owner == 0 || (::fstat(folder, &holder) == 0 && owner == holder.st_uid);
}

struct Entry {
    Descriptor fd;  ///< a link is open itself
    struct stat status{};
    bool is_new = false;
    bool link() const { return S_ISLNK(status.st_mode); }
};

/// An entry of a folder, which is made where it is missing; not open, with errno, when the system refuses.
Entry enter_one(int folder, const char* name, bool makes) {
    const auto look = [&] { return Descriptor(::openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)); };
    Entry entry{.fd = look()};
    if (!entry.fd.open() && errno == ENOENT && makes) {
        entry.is_new = ::mkdirat(folder, name, 0777) == 0;
        if (entry.is_new || errno == EEXIST) entry.fd = look();
    }
    if (entry.fd.open() && ::fstat(entry.fd.get(), &entry.status) != 0) entry.fd.close();
    return entry;
}

std::optional<fs::path> target_of(int link) {
    std::array<char, PATH_MAX> text;
    const ssize_t size = ::readlinkat(link, "", text.data(), text.size());
    if (size <= 0 || size == static_cast<ssize_t>(text.size())) return std::nullopt;
    return fs::path(std::string(text.data(), static_cast<std::size_t>(size)));
}

/// As Linux does it with fs.protected_symlinks. Who can take away what is in a folder needs no link.
void require_trusted_link(const struct stat& link, int folder, const std::string& name) {
    struct stat holder{};
    const bool known = ::fstat(folder, &holder) == 0;
    const bool shared = !known || ((holder.st_mode & S_ISVTX) != 0 && (holder.st_mode & (S_IWGRP | S_IWOTH)) != 0);
    if (!shared || is_trusted(link.st_uid, folder)) return;
    throw Error("disk.foreign-file", cat(name, " is a symbolic link of another user (number ", link.st_uid, ")"),
                planted_advice);
}

/// What was made just now is this user's, whatever owner a network file system reports.
void require_own(const Entry& entry, Owner owner, int folder, const std::string& name) {
    const uid_t uid = entry.status.st_uid;
    const bool ours = owner == Owner::anyone || entry.is_new || is_trusted(uid, folder);
    if (!entry.link() && ours) return;
    throw Error("disk.foreign-file",
                cat(name, entry.link() ? " is a symbolic link" : cat(" belongs to another user (number ", uid, ")"),
                    ", where this program keeps a folder of its own"),
                planted_advice);
}

/// The components, the next one last.
std::vector<std::string> components(const fs::path& way) {
    std::vector<std::string> parts;
    for (const fs::path& part : way)
        if (!part.empty() && part != "/" && part != ".") parts.push_back(part.string());
    std::reverse(parts.begin(), parts.end());
    return parts;
}

Descriptor beginning(const fs::path& way) {
    return Descriptor(::open(way.is_absolute() ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/// The names in a folder; nullopt, with errno, where it cannot be read.
std::optional<std::vector<std::string>> names_in(int folder) {
    Descriptor readable(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!readable.open()) return std::nullopt;
    DIR* const listing = ::fdopendir(readable.get());
    if (listing == nullptr) return std::nullopt;
    readable.release();
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(listing))
        if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
            names.emplace_back(entry->d_name);
    ::closedir(listing);
    return names;
}

bool remove_in(int folder, const char* name, int depth) {
    if (::unlinkat(folder, name, 0) == 0 || errno == ENOENT) return true;
    if (errno != EISDIR) return false;
    if (depth == 0) {
        errno = ELOOP;
        return false;
    }
    const Descriptor inner(::openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!inner.open()) return false;
    const auto names = names_in(inner.get());
    if (!names) return false;
    for (const std::string& below : *names)
        if (!remove_in(inner.get(), below.c_str(), depth - 1)) return false;
    return ::unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

}  // namespace

/// How a way is taken.
struct Folder::Way {
    bool makes = false;
    bool own = false;  ///< folders that this program keeps: no links, and of no other user
    Owner owner = Owner::ours;
};

Folder::Folder(fs::path path, Descriptor fd, int failure)
    : path_(std::move(path)),
      fd_(fd.open() ? std::make_shared<const Descriptor>(std::move(fd)) : nullptr),
      failure_(fd_ ? 0 : failure) {}

Folder Folder::walk(Descriptor here, const fs::path& path, const fs::path& way, const Way& rules) {
    constexpr int most_links = 40;  // as Linux
    const auto refused = [&] { return Folder(path, Descriptor(), errno); };
    if (!here.open()) return refused();
    std::vector<std::string> parts = components(way);
    for (int links = 0; !parts.empty();) {
        const std::string name = std::move(parts.back());
        parts.pop_back();
        Entry next = enter_one(here.get(), name.c_str(), rules.makes);
        if (!next.fd.open()) return refused();
        if (rules.own) require_own(next, rules.owner, here.get(), cat(shown(path), ": ", name));
        if (!next.link()) {
            here = std::move(next.fd);
            continue;
        }
        require_trusted_link(next.status, here.get(), cat(shown(path), ": ", name));
        const std::optional<fs::path> target = target_of(next.fd.get());
        if (!target || ++links > most_links) return Folder(path, Descriptor(), ELOOP);
        for (std::string& part : components(*target)) parts.push_back(std::move(part));
        if (target->is_absolute()) here = beginning(*target);
        if (!here.open()) return refused();
    }
    Descriptor end(::openat(here.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return end.open() ? Folder(path, std::move(end), 0) : refused();
}

Folder Folder::named(const fs::path& path) {
    return walk(beginning(path), path, path, {});
}

Folder Folder::made(const fs::path& path) {
    return walk(beginning(path), path, path, {.makes = true});
}

Folder Folder::enter(const fs::path& names, Owner owner, bool makes) const {
    const fs::path whole = path_ / names;
    const bool leads_out = names.is_absolute() || std::find(names.begin(), names.end(), "..") != names.end();
    if (leads_out) return walk(beginning(whole), whole, whole, {.makes = makes});
    Descriptor here(::openat(fd(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return walk(std::move(here), whole, names, {.makes = makes, .own = true, .owner = owner});
}

Folder Folder::below(const fs::path& names, Owner owner) const {
    return enter(names, owner, /*makes=*/false);
}

Folder Folder::made_below(const fs::path& names, Owner owner) const {
    return enter(names, owner, /*makes=*/true);
}

const Folder& Folder::require() const {
    if (!open())
        throw Error("disk.cannot-write", cat("cannot open the folder ", shown(path_), ": ", std::strerror(failure_)),
                    advice_on_creating(path_ / "", failure_));
    return *this;
}

std::vector<std::string> Folder::names() const {
    return names_in(fd()).value_or(std::vector<std::string>());
}

std::optional<struct stat> Folder::look(const std::string& name) const {
    struct stat status{};
    if (::fstatat(fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
    return status;
}

bool Folder::owns(const struct stat& entry) const {
    return is_trusted(entry.st_uid, fd());
}

bool Folder::has(const std::string& name, int file) const {
    struct stat opened{};
    const std::optional<struct stat> entry = look(name);
    return entry && ::fstat(file, &opened) == 0 && opened.st_dev == entry->st_dev && opened.st_ino == entry->st_ino;
}

std::optional<fs::path> Folder::link_target(const std::string& name) const {
    const Descriptor entry(::openat(fd(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!entry.open() || ::fstat(entry.get(), &status) != 0 || !S_ISLNK(status.st_mode)) return std::nullopt;
    require_trusted_link(status, fd(), (path_ / name).string());
    return target_of(entry.get());
}

bool Folder::rename(const std::string& from, const std::string& to) const {
    return ::renameat(fd(), from.c_str(), fd(), to.c_str()) == 0;
}

bool Folder::remove(const std::string& name) const {
    return remove_in(fd(), name.c_str(), deepest);
}

void Folder::remove_or_warn(const std::string& name) const {
    if (!remove(name)) log::warning("cannot remove ", (path_ / name).string(), ": ", std::strerror(errno));
}

void Folder::sync() const {
    const Descriptor readable(::openat(fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!readable.open() || ::fsync(readable.get()) != 0)
        throw Error(write_failure(errno), cat("cannot flush ", shown(path_), ": ", std::strerror(errno)));
}

Place place_of(const fs::path& path) {
    const fs::path whole = path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
    return {Folder::named(whole.parent_path()), whole.filename().string()};
}

}  // namespace unsloth
