#include "unsloth/hub/post.h"

#include "hub/poster.h"
#include "unsloth/core/error.h"
#include "unsloth/core/shared_library.h"

namespace unsloth::hub {

PostReply post(const PostRequest& request) {
    static SharedLibrary library("libunsloth_hub.so");
    static const auto entry = [] {
        decltype(&unsloth_http_post) found = nullptr;
        library.find(found, "unsloth_http_post");
        if (found == nullptr)
            throw Error("library.cannot-load",
                        cat("the library that speaks HTTP cannot be opened: ", library.missing()),
                        "It is in the executable's folder; scripts/build.sh makes both.");
        return found;
    }();
    PostReply reply;
    entry(&request, &reply);
    return reply;
}

}  // namespace unsloth::hub
