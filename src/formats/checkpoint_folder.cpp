#include "unsloth/formats/checkpoint_folder.h"

#include <algorithm>

#include "formats/json.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "checkpoint-";
constexpr const char* manifest_name = "manifest.json";
constexpr int64_t manifest_version = 1;

/// N of "checkpoint-N" and of nothing else; `suffix` receives what follows the digits.
std::optional<int64_t> step_of(const std::string& name, std::string* suffix = nullptr) {
    constexpr std::size_t most_digits = 18;
    if (!name.starts_with(prefix)) return std::nullopt;
    const std::string rest = name.substr(prefix.size());
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0 || digits > most_digits || (suffix == nullptr && digits != rest.size())) return std::nullopt;
    if (suffix != nullptr) *suffix = rest.substr(digits);
    return std::stoll(rest.substr(0, digits));
}

/// Whether a path that a file names stays below the folder that it is meant for.
bool is_below(const fs::path& name) {
    return !name.empty() && name.is_relative() && name.has_filename() &&
           std::none_of(name.begin(), name.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

std::string hash_of(const fs::path& path) {
    const MappedFile file(path);
    ContentHash hash;
    hash.add({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    return hash.hex();
}

std::string manifest_of(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (!entry.is_directory()) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    OrderedJson list = OrderedJson::array();
    for (const fs::path& file : files)
        list.push_back({{"name", file.lexically_relative(folder).generic_string()},
                        {"bytes", fs::file_size(file)},
                        {"xxh3_128", hash_of(file)}});
    return OrderedJson{{"version", manifest_version}, {"files", std::move(list)}}.dump(2) + "\n";
}

/// Links are looked at themselves: one of this user's may lead to a checkpoint that he keeps elsewhere.
std::vector<CheckpointFolder> checkpoints_in(const Folder& folder, bool ours) {
    std::vector<CheckpointFolder> found;
    std::error_code failed;
    for (const std::string& name : folder.names()) {
        const auto step = step_of(name);
        const auto entry = step ? folder.look(name) : std::nullopt;
        if (entry && folder.owns(*entry) == ours && fs::is_directory(folder / name, failed))
            found.push_back({folder / name, *step});
    }
    std::sort(found.begin(), found.end(),
              [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step > b.step; });
    return found;
}

}  // namespace

std::vector<CheckpointFolder> list_checkpoints(const fs::path& output_dir) {
    return checkpoints_in(Folder::named(output_dir), /*ours=*/true);
}

std::vector<CheckpointFolder> foreign_checkpoints(const fs::path& output_dir) {
    return checkpoints_in(Folder::named(output_dir), /*ours=*/false);
}

CheckpointWriter::CheckpointWriter(const fs::path& output_dir, int64_t step)
    : path_(output_dir / cat(prefix, step)), staged_(Folder::made(output_dir).require(), path_.filename()) {}

void CheckpointWriter::commit() {
    write_file_atomically(staged_.path() / manifest_name, manifest_of(staged_.path()));
    staged_.commit();
}

std::optional<std::string> find_damage(const fs::path& checkpoint) {
    try {
        const std::string source = (checkpoint / manifest_name).string();
        if (!fs::exists(source)) return "it has no manifest.json: it was not finished";
        const auto parsed = parse_json<OrderedJson>(read_file(source), source);
        const JsonReader manifest(parsed, source);
        if (manifest["version"].integer() > manifest_version) return "a later version of this program wrote it";
        for (const JsonReader& file : manifest["files"].elements()) {
            const std::string name = file.string("name").value_or("");
            if (!is_below(name)) file["name"].refuse("a file's name, or its path below the checkpoint");
            const fs::path path = checkpoint / name;
            if (!fs::is_regular_file(path)) return cat(name, " is missing");
            if (const auto bytes = static_cast<int64_t>(fs::file_size(path)); bytes != file["bytes"].integer())
                return cat(name, " has ", bytes, " bytes instead of ", file["bytes"].integer());
            if (hash_of(path) != file.string("xxh3_128").value_or(""))
                return cat(name, " was changed since it was written");
        }
    } catch (const std::exception& error) {
        return error.what();
    }
    return std::nullopt;
}

std::optional<std::string> find_damage_of_own(const fs::path& checkpoint) {
    const Place place = place_of(checkpoint);
    const auto entry = place.folder.look(place.name);
    if (entry && !place.folder.owns(*entry)) return "it belongs to another user";
    return find_damage(checkpoint);
}

void remove_old_checkpoints(const fs::path& output_dir, int64_t limit, std::optional<int64_t> best) {
    if (limit == 0) return;
    const Folder folder = Folder::named(output_dir);
    const std::vector<CheckpointFolder> all = checkpoints_in(folder, /*ours=*/true);
    const bool has_best =
        best && std::any_of(all.begin(), all.end(), [&](const CheckpointFolder& c) { return c.step == *best; });
    int64_t room = limit - (has_best ? 1 : 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (has_best && all[i].step == *best) continue;
        if (--room >= 0 || i == 0) continue;
        folder.remove_or_warn(all[i].path.filename());
    }
}

void remove_unfinished_checkpoints(const fs::path& output_dir) {
    const Folder folder = Folder::named(output_dir);
    for (const std::string& name : folder.names()) {
        std::string suffix;
        const auto step = step_of(name, &suffix);
        if (!step || (!suffix.starts_with(".tmp-") && !suffix.starts_with(".old-"))) continue;
        const auto entry = folder.look(name);
        if (!entry || !folder.owns(*entry)) continue;
        // Killed between the two renames of a replacement: the old one is the only whole one.
        const std::string finished = cat(prefix, *step);
        const bool is_last = suffix.starts_with(".old-") && !folder.look(finished) && !find_damage(folder / name);
        if (!is_last || !folder.rename(name, finished)) folder.remove_or_warn(name);
    }
}

}  // namespace unsloth::formats
