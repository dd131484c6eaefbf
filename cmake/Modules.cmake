# unsloth_module(NAME [TORCH | JSON] [QUICK] LINK ...): src/NAME/*.cpp and src/NAME/*/*.cpp as an object library with include/ public.
# QUICK: it asks others to compute, so that a quicker build loses nothing.
# unsloth_shared(NAME [TORCH] MODULES ...): the shared library of those modules.
function(unsloth_module name)
  cmake_parse_arguments(arg "TORCH;JSON;QUICK" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp" "${PROJECT_SOURCE_DIR}/src/${name}/*/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/src/(data/parquet|images/codecs|hub/download|hub/upload|report/prometheus)/")  # libraries of their own (Parquet.cmake, …)
  list(FILTER sources EXCLUDE REGEX "/src/app/main.cpp$")  # so that tests can link the rest of the executable
  add_library(${name} OBJECT ${sources})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} ${arg_LINK} PRIVATE unsloth_warnings)
  set(quick "")
  if(arg_QUICK)
    set(quick _quick)
    target_compile_options(${name} PRIVATE ${unsloth_quick_options})
  endif()
  if(arg_TORCH)
    target_link_libraries(${name} PUBLIC unsloth::torch)
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")  # kernels/*.h
    unsloth_use_pch(${name} torch${quick})
  elseif(arg_JSON)
    unsloth_use_pch(${name} json${quick})
  endif()
  unsloth_use_unity(${name} 6)
endfunction()

# FOLDER/*.json as texts of the program, which FOLDER.inc lists: R"json(…)json", or with NAMED {"NAME", R"json(…)json"},
function(unsloth_texts target folder)
  cmake_parse_arguments(arg "NAMED" "" "" ${ARGN})
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.json")
  set(texts "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    set(text "R\"json(${text})json\"")
    if(arg_NAMED)
      get_filename_component(name "${file}" NAME_WLE)
      set(text "{\"${name}\", ${text}}")
    endif()
    string(APPEND texts "${text},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${folder}/${folder}.inc" CONTENT "@texts@" @ONLY)
  target_include_directories(${target} PRIVATE "${PROJECT_BINARY_DIR}/${folder}")
endfunction()

# src/NAME/FILE as a text of the program: the constant SYMBOL in NAME/STEM.inc.
function(unsloth_embedded_text name file symbol)
  set(path "${PROJECT_SOURCE_DIR}/src/${name}/${file}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  file(READ "${path}" text)
  get_filename_component(stem "${file}" NAME_WE)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/embedded/${name}/${stem}.inc"
       CONTENT "constexpr const char* ${symbol} = R\"text(@text@)text\";\n" @ONLY)
  target_include_directories(${name} PRIVATE "${PROJECT_BINARY_DIR}/embedded")
endfunction()

# Most of a test's build is the compiler at work on GoogleTest's and LibTorch's templates; what is tested is compiled elsewhere.
set(unsloth_test_options $<$<CONFIG:Release>:-O0>)
set(unsloth_quick_options $<$<CONFIG:Release>:-O1>)

# unsloth_use_pch(TARGET KIND): precompiled headers, made once a kind and shared by all targets that use the kind:
#   torch  LibTorch's tensors       json  nlohmann/json       test, torch_test  the same for tests, with GoogleTest
# KIND_quick: for modules that are QUICK. GCC 13 takes no header that was compiled at another level of optimisation.
function(unsloth_use_pch name kind)
  set(pch unsloth_${kind}_pch)
  if(NOT TARGET ${pch})
    set(headers_torch <ATen/ATen.h> <string> <vector> <memory> <optional>)
    set(headers_json <nlohmann/json.hpp> <filesystem> <fstream> <functional> <map> <string> <vector>)
    set(headers_test <gtest/gtest.h> ${headers_json})
    set(headers_torch_test ${headers_torch} ${headers_test})
    set(library_torch unsloth::torch)
    set(library_json nlohmann_json::nlohmann_json)
    set(library_test GTest::gtest nlohmann_json::nlohmann_json)
    set(library_torch_test unsloth::torch ${library_test})
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${kind}_pch.cpp" CONTENT "// carries the precompiled headers\n")
    add_library(${pch} OBJECT "${PROJECT_BINARY_DIR}/${kind}_pch.cpp")
    string(REGEX REPLACE "_quick$" "" content ${kind})
    target_link_libraries(${pch} PRIVATE ${library_${content}} Threads::Threads)
    target_precompile_headers(${pch} PRIVATE ${headers_${content}})
    if(kind MATCHES "_quick$")
      target_compile_options(${pch} PRIVATE ${unsloth_quick_options})
    elseif(kind MATCHES "test$")
      target_compile_options(${pch} PRIVATE ${unsloth_test_options})
    endif()
  endif()
  target_precompile_headers(${name} REUSE_FROM ${pch})
  # The precompiled headers are made with -fPIC, where an executable would ask for -fPIE.
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
endfunction()

# Files are compiled BATCH at a time: instantiating LibTorch's and JSON's templates once takes a third of the time.
function(unsloth_use_unity name batch)
  if(UNSLOTH_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
    # GCC takes the files of a batch for headers, whose classes should hold no anonymous types.
    target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(unsloth_shared name)
  cmake_parse_arguments(arg "TORCH" "" "MODULES" ${ARGN})
  add_library(${name} SHARED)
  foreach(module IN LISTS arg_MODULES)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${module}>)
  endforeach()
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/include")
  if(arg_TORCH)
    if(TARGET kernels)
      target_sources(${name} PRIVATE $<TARGET_OBJECTS:kernels>)
    endif()
    target_link_libraries(${name} PUBLIC unsloth_base unsloth::torch PRIVATE PkgConfig::CRYPTO PkgConfig::HTTP ZLIB::ZLIB)
    set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN;${UNSLOTH_TORCH_RPATH}"
                                             INSTALL_RPATH "$ORIGIN;${UNSLOTH_TORCH_RPATH}")
  else()
    target_link_libraries(${name} PRIVATE spdlog::spdlog_header_only PkgConfig::PCRE2 PkgConfig::ICU ZLIB::ZLIB PkgConfig::ZSTD
                                          ${YAML_CPP_LIBRARIES} ${CMAKE_DL_LIBS} Threads::Threads)
  endif()
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  # Without this a test program's copies of inline functions, which are not optimised, would serve the library too.
  target_link_options(${name} PRIVATE "LINKER:-Bsymbolic-functions")
  if(NOT UNSLOTH_SANITIZE)
    target_link_options(${name} PRIVATE "LINKER:-z,defs")  # a symbol that is nowhere fails here, not when a user starts it
  endif()
endfunction()

function(unsloth_kernels name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/*.cu" "${PROJECT_SOURCE_DIR}/kernels/*.cpp")
  add_library(${name} OBJECT ${sources})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${name} PUBLIC unsloth_cuda PRIVATE unsloth_warnings)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-DNDEBUG -lineinfo --expt-relaxed-constexpr>)
  # cuDNN's graph interface is a minute of templates; its code only describes graphs.
  set_source_files_properties("${PROJECT_SOURCE_DIR}/kernels/attention_cudnn.cpp" PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
  # Where the kernels are tuned, registers that ptxas spills to memory fail the build (its warnings are errors). Known and
  # rare: norms of f16 that rebuild their output and of rows that are not aligned (2 and 8 bytes), codes of rows above
  # 32,768 values, fp32 attention over pages (4 bytes), the delta rule's widest scans (4 to 12 bytes).
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "90a-real")
    list(FILTER sources INCLUDE REGEX "\\.cu$")
    list(FILTER sources EXCLUDE REGEX "/(norm|fp8_rows|paged_attention|delta_scan)\\.cu$")
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -Xptxas=--warn-on-spills)
  endif()
  if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/kernels/common/launch.cpp" PROPERTIES COMPILE_DEFINITIONS UNSLOTH_SM90A)
  endif()
endfunction()

# The executable is free of LibTorch: it links the base library and opens the engine when a command needs it.
function(unsloth_executable name)
  add_executable(${name} "${PROJECT_SOURCE_DIR}/src/app/main.cpp" $<TARGET_OBJECTS:app>)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE unsloth_base unsloth_warnings nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" BUILD_RPATH "$ORIGIN"
                                           INSTALL_RPATH "$ORIGIN")
  add_dependencies(${name} unsloth_engine unsloth_hub)
  foreach(library unsloth_parquet unsloth_images unsloth_prometheus)
    if(TARGET ${library})
      add_dependencies(${name} ${library})
    endif()
  endforeach()
endfunction()

# What --version says of a build, for the one file that says it. UNSLOTH_COMMIT comes from scripts/build.sh.
function(unsloth_build_facts)
  file(GLOB wheel "${UNSLOTH_SITE_PACKAGES}/torch-*.dist-info")
  string(REGEX REPLACE ".*/torch-(.*)\\.dist-info$" "\\1" torch "${wheel}")
  string(REPLACE ";" " " architectures "${CMAKE_CUDA_ARCHITECTURES}")  # a list would become several definitions
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/app/build_facts.cpp" PROPERTIES COMPILE_DEFINITIONS
    "UNSLOTH_BUILD_COMMIT=\"${UNSLOTH_COMMIT}\";UNSLOTH_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\";UNSLOTH_BUILD_TORCH=\"${torch}\";UNSLOTH_BUILD_CUDA=\"${CMAKE_CUDA_COMPILER_VERSION}\";UNSLOTH_BUILD_ARCHITECTURES=\"${architectures}\"")
endfunction()

# unsloth_test(NAME [TORCH] [LABELS ...] SOURCES ...): one GoogleTest binary, one ctest entry.
function(unsloth_test name)
  cmake_parse_arguments(arg "TORCH" "" "LABELS;SOURCES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE test_common unsloth_base unsloth_warnings nlohmann_json::nlohmann_json GTest::gtest_main)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE unsloth_engine)
    unsloth_use_pch(${name} torch_test)
    unsloth_use_unity(${name} 24)  # not optimised, such a batch is little but those templates
    set_target_properties(${name} PROPERTIES BUILD_RPATH "${PROJECT_BINARY_DIR};${UNSLOTH_TORCH_RPATH}")
  else()
    unsloth_use_pch(${name} test)
    unsloth_use_unity(${name} 6)
  endif()
  target_compile_options(${name} PRIVATE ${unsloth_test_options})
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT HF_HUB_OFFLINE=1)
  if(arg_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  endif()
endfunction()
