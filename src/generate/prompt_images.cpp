#include "unsloth/generate/prompt_images.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "unsloth/core/error.h"

namespace unsloth::generate {
namespace {

/// A hash of the grid of patches and of the pixels.
std::array<int32_t, 8> content_of(const data::Image& image) {
    const std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> hash(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free);
    const int32_t grid[] = {image.grid_h, image.grid_w};
    std::array<int32_t, 8> digest{};
    const bool done = hash && ::EVP_DigestInit_ex(hash.get(), ::EVP_sha256(), nullptr) == 1 &&
                      ::EVP_DigestUpdate(hash.get(), grid, sizeof grid) == 1 &&
                      ::EVP_DigestUpdate(hash.get(), image.pixels->data(), image.pixels->size()) == 1 &&
                      ::EVP_DigestFinal_ex(hash.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1;
    UNSLOTH_CHECK(done, "SHA-256 of an image failed");
    return digest;
}

}  // namespace

PromptImages::PromptImages(const data::Sample& prompt, const spec::VisionSpec& tower)
    : images(prompt.images), axes_T3(prompt.axes) {
    for (const data::Image& image : images) {
        UNSLOTH_CHECK(image.pixels != nullptr, "an image of a prompt without its pixels");
        places.push_back({image.first, static_cast<int32_t>(tower.tokens_of(image.patches())), content_of(image)});
    }
    if (axes_T3.empty()) return;
    UNSLOTH_CHECK(axes_T3.size() == 3 * prompt.ids.size(), axes_T3.size(), " positions on axes of ", prompt.ids.size(),
                  " tokens");
    offset = *std::ranges::max_element(axes_T3) + 1 - static_cast<int32_t>(prompt.ids.size());
}

int64_t PromptImages::patches() const {
    int64_t most = 0;
    for (const data::Image& image : images) most = std::max(most, image.patches());
    return most;
}

int64_t PromptImages::longest_image() const {
    int64_t most = 0;
    for (const Place& place : places) most = std::max<int64_t>(most, place.count);
    return most;
}

int64_t room_for_tiled(int64_t rows, int64_t images) {
    constexpr int64_t usual = 8;
    return images == 0 ? usual : std::max(images, std::min(usual, rows * images));
}

const PromptImages::Place* PromptImages::cut_by(int64_t end) const {
    const auto cut = std::ranges::find_if(places, [&](const Place& p) { return p.first < end && end < p.end(); });
    return cut == places.end() ? nullptr : &*cut;
}

}  // namespace unsloth::generate
