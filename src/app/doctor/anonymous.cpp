#include "app/doctor/anonymous.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace unsloth::app {
namespace {

bool is_of_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

bool is_word(const std::string& text, std::size_t begin, std::size_t end) {
    return (begin == 0 || !is_of_word(text[begin - 1])) && (end == text.size() || !is_of_word(text[end]));
}

void replace_words(std::string& text, const std::string& word, const std::string& by) {
    if (word.empty()) return;
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
        const bool alone = is_word(text, at, at + word.size());
        if (alone) text.replace(at, word.size(), by);
        at += alone ? by.size() : 1;
    }
}

/// Where a path that continues here ends. Folder names may have spaces and brackets; losing a little more of a line
/// does no harm.
std::size_t end_of_path(const std::string& text, std::size_t at) {
    return std::min(text.find_first_of("\t\n:;'\"", at), text.size());
}

/// Replaces the folder and the path below it, which may name a project or a client.
void replace_paths(std::string& text, const std::string& folder) {
    if (folder.size() < 2) return;  // "/" names no user
    for (std::size_t at = 0; (at = text.find(folder, at)) != std::string::npos; ++at) {
        const std::size_t after = at + folder.size();
        if (!is_word(text, at, after)) continue;
        const std::size_t end = end_of_path(text, after);
        text.replace(at, end - at, end > after + 1 ? "~/…" : "~");
    }
}

constexpr const char* folders_of_homes[] = {"/home/", "/Users/"};

/// Replaces the paths below folders that have a subfolder for each user.
void replace_homes(std::string& text) {
    for (const std::string homes : folders_of_homes)
        for (std::size_t at = 0; (at = text.find(homes, at)) != std::string::npos; at += homes.size()) {
            const std::size_t name = at + homes.size(), end = end_of_path(text, name);
            if (end > name) text.replace(name, end - name, "…");
        }
}

void replace_folders(std::string& text, const std::string& name, const std::string& by) {
    for (std::size_t at = 0; (at = text.find("/" + name, at)) != std::string::npos; ++at)
        if (const std::size_t end = at + 1 + name.size(); end == text.size() || !is_of_word(text[end]))
            text.replace(at + 1, name.size(), by);
}

void replace_tokens(std::string& text) {
    const std::string begin = "hf_";
    constexpr std::size_t least = 8;  // letters of what may be one
    for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos; at += begin.size()) {
        std::size_t end = at + begin.size();
        while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end])) != 0) ++end;
        if (end - at >= begin.size() + least) text.replace(at, end - at, "hf_…");
    }
}

/// Accounts of people, and owners of home folders, whom a network's directory may know alone.
std::vector<std::string> names_of_others() {
    constexpr uid_t first_person = 1000, uid_nobody = 65534;
    std::vector<std::string> names;
    ::setpwent();
    while (const passwd* const entry = ::getpwent())
        if (entry->pw_uid >= first_person && entry->pw_uid != uid_nobody) names.emplace_back(entry->pw_name);
    ::endpwent();
    std::error_code failed;
    for (const char* homes : folders_of_homes)
        for (std::filesystem::directory_iterator entry(homes, failed), end; !failed && entry != end;
             entry.increment(failed))
            names.push_back(entry->path().filename().string());
    std::erase(names, "");
    return names;
}

std::string without_slash(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

}  // namespace

Identity own_identity() {
    Identity identity;
    const passwd* const entry = ::getpwuid(::getuid());
    const char* const home = std::getenv("HOME");
    if (home != nullptr && *home != '\0')
        identity.home = without_slash(home);
    else if (entry != nullptr)
        identity.home = without_slash(entry->pw_dir);
    const char* const user = std::getenv("USER");
    if (entry != nullptr)
        identity.user = entry->pw_name;
    else if (user != nullptr)
        identity.user = user;
    if (identity.user == "root") identity.user.clear();  // whom it does not name
    char host[256] = "";
    if (::gethostname(host, sizeof host - 1) == 0) identity.host = host;
    if (identity.host == "localhost") identity.host.clear();
    identity.others = names_of_others();
    std::erase(identity.others, identity.user);
    return identity;
}

std::string anonymous(const std::string& text, const Identity& identity) {
    std::string clean = text;
    replace_tokens(clean);
    replace_paths(clean, identity.home);
    replace_homes(clean);
    replace_words(clean, identity.user, "USER");
    for (const std::string& other : identity.others) replace_folders(clean, other, "OTHER");
    replace_words(clean, identity.host, "HOST");
    replace_words(clean, identity.host.substr(0, identity.host.find('.')), "HOST");
    return clean;
}

}  // namespace unsloth::app
