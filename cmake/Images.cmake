# libunsloth_images.so, which decodes images by libjpeg-turbo, libpng and libwebp; where one of them is not installed, it is left
# out, and the program says so when it meets an image.
pkg_check_modules(IMAGE_LIBRARIES IMPORTED_TARGET libjpeg libpng libwebp)
if(IMAGE_LIBRARIES_FOUND)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/images/codecs/*.cpp")
  add_library(unsloth_images SHARED ${sources})
  target_include_directories(unsloth_images PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(unsloth_images PRIVATE PkgConfig::IMAGE_LIBRARIES unsloth_warnings)
  set_target_properties(unsloth_images PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
else()
  message(STATUS "No libjpeg, libpng and libwebp: built without images (scripts/setup.sh installs them)")
endif()
