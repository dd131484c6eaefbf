# libunsloth_parquet.so, which reads Parquet files by the Arrow libraries inside the PyPI wheel `pyarrow`; where that is not
# installed, it is left out, and the program says so when it meets such a file. UNSLOTH_ARROW_ROOT names the wheel's folder.
if(NOT DEFINED UNSLOTH_ARROW_ROOT)
  set(UNSLOTH_ARROW_ROOT "${UNSLOTH_SITE_PACKAGES}/pyarrow")
endif()
file(GLOB arrow_libraries "${UNSLOTH_ARROW_ROOT}/libarrow.so.*" "${UNSLOTH_ARROW_ROOT}/libparquet.so.*")
list(LENGTH arrow_libraries arrow_count)
if(arrow_count EQUAL 2 AND EXISTS "${UNSLOTH_ARROW_ROOT}/include/parquet/arrow/reader.h")
  add_library(unsloth_parquet SHARED src/data/parquet/parquet_library.cpp src/data/parquet/values.cpp)
  target_include_directories(unsloth_parquet PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(unsloth_parquet SYSTEM PRIVATE "${UNSLOTH_ARROW_ROOT}/include")
  target_link_libraries(unsloth_parquet PRIVATE ${arrow_libraries} unsloth_warnings nlohmann_json::nlohmann_json)
  target_link_options(unsloth_parquet PRIVATE "LINKER:--allow-shlib-undefined")
  set_target_properties(unsloth_parquet PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
                                                   BUILD_RPATH "${UNSLOTH_ARROW_ROOT}" INSTALL_RPATH "${UNSLOTH_ARROW_ROOT}")
else()
  message(STATUS "No Arrow libraries in '${UNSLOTH_ARROW_ROOT}': built without Parquet (scripts/setup.sh installs pyarrow)")
endif()
