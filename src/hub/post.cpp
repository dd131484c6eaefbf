#include "unsloth/hub/post.h"

#include "hub/library.h"
#include "hub/poster.h"

namespace unsloth::hub {

PostReply post(const PostRequest& request) {
    static const auto entry = library_function<decltype(unsloth_http_post)>("unsloth_http_post", "speaks HTTP");
    PostReply reply;
    entry(&request, &reply);
    return reply;
}

}  // namespace unsloth::hub
