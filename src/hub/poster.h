// The entry of libunsloth_hub.so for POST.
#pragma once

#include "unsloth/hub/post.h"

extern "C" {
void unsloth_http_post(const unsloth::hub::PostRequest* request, unsloth::hub::PostReply* reply);
}
