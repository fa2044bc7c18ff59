# How a test program is built and run: forebay_test(NAME SOURCES... [OPTIONS]) and the
# checks of the library files themselves. Nothing here asserts a time.

set(FOREBAY_WARNINGS -Wall -Wextra -Wpedantic -Werror)
set(FOREBAY_TEST_ENV "FOREBAY_BACKEND=host")
if(FOREBAY_SANITIZE)
  # LeakSanitizer is off: the library keeps its tables in mappings of its own, which
  # LeakSanitizer does not scan, so it would take what they point to for lost.
  # The limit keeps the pool's reservation small enough to live beside the shadow.
  list(APPEND FOREBAY_TEST_ENV "FOREBAY_LIMIT=1GiB"
       "ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:handle_segv=1")
endif()

# Compile and link flags that every test program gets.
function(forebay_test_flags target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE ${FOREBAY_WARNINGS})
  # Assertions of the standard library stay on whatever the build type.
  target_compile_options(${target} PRIVATE -UNDEBUG)
  if(FOREBAY_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${FOREBAY_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${target} PRIVATE -fsanitize=${FOREBAY_SANITIZE})
  endif()
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

# Registers a built program as the ctest NAME.
function(forebay_register name)
  add_test(NAME ${name} COMMAND ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${FOREBAY_TEST_ENV}" TIMEOUT 300)
endfunction()

# A program linked with the shipped library, and its ctest of the same name.
function(forebay_test name)
  add_executable(${name} ${ARGN})
  forebay_test_flags(${name})
  target_link_libraries(${name} PRIVATE forebay::forebay)
  forebay_register(${name})
endfunction()

# A ctest that only says why a check is not made here.
function(forebay_skipped name why)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "SKIP ${name}: ${why}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIP ")
endfunction()

# The same program under Valgrind. 1 GiB: Valgrind refuses much larger reservations.
function(forebay_valgrind name)
  if(FOREBAY_SANITIZE)
    forebay_skipped(valgrind_${name} "sanitized programs do not run under valgrind")
  elseif(NOT FOREBAY_VALGRIND)
    forebay_skipped(valgrind_${name} "valgrind is not installed")
  else()
    add_test(NAME valgrind_${name} COMMAND "${FOREBAY_VALGRIND}" --quiet --error-exitcode=99
             --trace-children=no $<TARGET_FILE:${name}>)
    set_tests_properties(valgrind_${name} PROPERTIES
      ENVIRONMENT "FOREBAY_BACKEND=host;FOREBAY_LIMIT=1GiB" TIMEOUT 600)
  endif()
endfunction()
find_program(FOREBAY_VALGRIND valgrind)

# ---- the library files: exports, dynamic section, header
function(forebay_check_file name script)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" ${ARGN} -P
           "${PROJECT_SOURCE_DIR}/cmake/${script}")
endfunction()
set(_map "-DMAP=${FOREBAY_EXPORTS}")
set(_nm "-DNM=${CMAKE_NM}")
forebay_check_file(exports_shipped check_exports.cmake ${_map} ${_nm}
  "-DLIBRARY=$<TARGET_FILE:forebay>" -DVERSIONED=ON)
forebay_check_file(exports_cdylib check_exports.cmake ${_map} ${_nm}
  "-DLIBRARY=${FOREBAY_CDYLIB}" -DVERSIONED=OFF)
forebay_check_file(exports_header check_exports.cmake ${_map}
  "-DHEADER=${PROJECT_SOURCE_DIR}/include/forebay.h")
set(_readelf "-DREADELF=${CMAKE_READELF}")
set(_soname -DSONAME=libforebay.so.0)
forebay_check_file(dynamic_shipped check_dynamic.cmake ${_readelf} ${_soname}
  "-DLIBRARY=$<TARGET_FILE:forebay>")
forebay_check_file(dynamic_cdylib check_dynamic.cmake ${_readelf} ${_soname}
  "-DLIBRARY=${FOREBAY_CDYLIB}")
if(FOREBAY_BUILD_PRELOAD)
  forebay_check_file(dynamic_preload check_dynamic.cmake ${_readelf}
    -DSONAME=libforebay_preload.so -DUNVERSIONED=ON "-DLIBRARY=${forebay_PRELOAD}")
endif()
