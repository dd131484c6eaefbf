#include "weights/disk_loading.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

/// Where in its file a tensor of the checkpoint has these bytes; nullopt: they are not in its map.
struct Located {
    const formats::TensorView* view = nullptr;
    int64_t offset = 0;
};
std::optional<Located> locate(const formats::TensorSource& source, const at::Tensor& values) {
    if (!values.is_cpu()) return std::nullopt;
    const auto* const begin = static_cast<const std::byte*>(values.const_data_ptr());
    const auto has = [&](const formats::TensorView& view) {
        return begin >= view.data.data() && begin + values.nbytes() <= view.data.data() + view.data.size();
    };
    const auto in = [&](const formats::TensorView& view) {
        return Located{&view, static_cast<int64_t>(view.file_offset) + (begin - view.data.data())};
    };
    // Of an 8-bit weight the codes are its tensor; maxima belong to an image's rest.
    if (source.mxfp4() != nullptr) return std::nullopt;  // codes are held in another order
    if (!source.quantised()) return has(source.tensor()) ? std::optional(in(source.tensor())) : std::nullopt;
    for (const formats::TensorView* part : source.quant4()->parts)
        if (has(*part)) return in(*part);
    return std::nullopt;
}

}  // namespace

void DiskLoading::place(StreamedImage& layer, const PackedLayer& image, const std::string& part,
                        const formats::TensorSource& source, const at::Tensor& values) {
    const int64_t to = image.offset(part);
    if (to >= image.rest()) {
        layer.disk->rest = layer.image;
        const at::Tensor bytes = values.cpu().contiguous().view(at::kByte);
        layer.image.narrow(0, to - image.rest(), bytes.numel()).copy_(bytes);
        return;
    }
    FileRange range;
    if (const std::optional<Located> found = locate(source, values)) {
        range = {files_.add(found->view->file->path()), found->offset, static_cast<int64_t>(values.nbytes())};
    } else {
        range = write(source, values);
    }
    range.to = to;
    layer.disk->ranges.push_back(range);
}

void DiskLoading::fail_to_write() const {
    throw Error("disk.cannot-write",
                cat("model.offload_folder: cannot write to ", *folder_, ": ", std::strerror(errno)),
                "It takes about as many bytes as the layers that model.device_map leaves on the disk.");
}

DiskFiles DiskLoading::take_files() {
    // What the disk refuses later would be read as other weights.
    if (made_ && ::fsync(made_->fd()) != 0) fail_to_write();
    made_.reset();
    return std::move(files_);
}

FileRange DiskLoading::write(const formats::TensorSource& source, const at::Tensor& values) {
    if (!folder_)
        throw Error("model.device-map", cat(source.rule.hf_name, " is not in the checkpoint as it is used"),
                    "Set model.offload_folder to a folder for it.");
    const std::filesystem::path folder = *folder_;
    if (!made_) {
        const Folder own = Folder::made(folder);
        if (!own.open())
            throw Error("disk.cannot-write",
                        cat("model.offload_folder: cannot make ", folder.string(), ": ", std::strerror(own.failure())));
        made_ = std::make_unique<Temporary>(Place{own, "unsloth-weights"}, Temporary::Kind::file);
    }
    const at::Tensor bytes = values.cpu().contiguous();
    const auto* from = static_cast<const std::byte*>(bytes.const_data_ptr());
    const auto count = static_cast<int64_t>(bytes.nbytes());
    for (int64_t done = 0; done < count;) {
        const ssize_t got = ::pwrite(made_->fd(), from + done, static_cast<std::size_t>(count - done), end_ + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_to_write();
        done += got;
    }
    const FileRange range{files_.add(made_->path()), end_, count};
    end_ = (end_ + count + DiskFiles::alignment - 1) / DiskFiles::alignment * DiskFiles::alignment;
    return range;
}

}  // namespace unsloth::weights
