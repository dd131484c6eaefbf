# libunsloth_hub.so, which downloads from the Hugging Face hub and uploads to it; it alone links libcurl.
pkg_check_modules(HUB_LIBRARIES REQUIRED IMPORTED_TARGET libcurl>=7.85 libcrypto)
file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/hub/download/*.cpp" "${PROJECT_SOURCE_DIR}/src/hub/upload/*.cpp")
add_library(unsloth_hub SHARED ${sources})
target_include_directories(unsloth_hub PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(unsloth_hub PRIVATE unsloth_base nlohmann_json::nlohmann_json PkgConfig::HUB_LIBRARIES Threads::Threads
                                          unsloth_warnings)
set_target_properties(unsloth_hub PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" BUILD_RPATH "$ORIGIN"
                                             INSTALL_RPATH "$ORIGIN")
