# The messages of proto/: their descriptors by protoc at configure time, their bytes by protozero's headers at run time. protobuf's own
# library stays out of the program: LibTorch exports the symbols of another version of it.
find_program(UNSLOTH_PROTOC protoc REQUIRED)
find_path(UNSLOTH_PROTOZERO protozero/pbf_reader.hpp REQUIRED)

# proto/*.proto and proto/*/*.proto as a FileDescriptorSet: the array `descriptors` in descriptors.inc.
function(unsloth_descriptors target)
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/proto/*.proto" "${PROJECT_SOURCE_DIR}/proto/*/*.proto")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  set(folder "${PROJECT_BINARY_DIR}/descriptors")
  file(MAKE_DIRECTORY "${folder}")
  execute_process(COMMAND "${UNSLOTH_PROTOC}" -I "${PROJECT_SOURCE_DIR}/proto" --include_imports "--descriptor_set_out=${folder}/descriptors.pb" ${files}
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${folder}/descriptors.pb" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  file(CONFIGURE OUTPUT "${folder}/descriptors.inc" CONTENT "constexpr unsigned char descriptors[] = {\n@bytes@};\n" @ONLY)
  target_include_directories(${target} PRIVATE "${folder}")
  target_include_directories(${target} SYSTEM PRIVATE "${UNSLOTH_PROTOZERO}")
endfunction()
