# One step of the consumer test: `install` (then the prefix is moved: what is installed must
# not know where it was put), `find_package`, or `pkg_config`.
cmake_minimum_required(VERSION 3.20)

set(PREFIX "${WORK}/moved")

# Runs a command; its failure is the test's. Its output lands in RUN_OUTPUT.
macro(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE _code
                  OUTPUT_VARIABLE RUN_OUTPUT ERROR_VARIABLE _error)
  if(NOT _code EQUAL 0)
    string(REPLACE ";" " " _command "${ARGN}")
    message(FATAL_ERROR "${_command}\nended with ${_code}\n${RUN_OUTPUT}\n${_error}")
  endif()
endmacro()

# Runs a built program and checks what it says.
macro(run_program program language)
  run("${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${PREFIX}/${LIBDIR}" "${program}")
  if(NOT RUN_OUTPUT STREQUAL "forebay 0.1.0 from ${language}\n")
    message(FATAL_ERROR "${program} printed: ${RUN_OUTPUT}")
  endif()
  message(STATUS "${program}: ok")
endmacro()

if(STEP STREQUAL "install")
  file(REMOVE_RECURSE "${WORK}")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${WORK}/first")
  file(RENAME "${WORK}/first" "${PREFIX}")
  foreach(file IN ITEMS include/forebay.h include/forebay.hpp include/forebay_share.hpp
          ${LIBDIR}/libforebay.a ${LIBDIR}/libforebay.so ${LIBDIR}/libforebay.so.0
          ${LIBDIR}/libforebay.so.0.1.0 ${LIBDIR}/pkgconfig/forebay.pc
          ${LIBDIR}/cmake/forebay/forebayConfig.cmake
          ${LIBDIR}/cmake/forebay/forebayConfigVersion.cmake
          ${LIBDIR}/cmake/forebay/forebayTargets.cmake)
    if(NOT EXISTS "${PREFIX}/${file}")
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()

elseif(STEP STREQUAL "find_package")
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/build" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
      "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}"
      -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
  run("${CMAKE_COMMAND}" --build "${WORK}/build")
  foreach(linkage IN ITEMS shared static)
    run_program("${WORK}/build/c_${linkage}" "C")
    run_program("${WORK}/build/cpp_${linkage}" "C++")
  endforeach()

elseif(STEP STREQUAL "pkg_config")
  find_program(PKG_CONFIG NAMES pkg-config pkgconf)
  if(NOT PKG_CONFIG)
    message("SKIP consumer_pkg_config: neither pkg-config nor pkgconf is installed")
    return()
  endif()
  set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBDIR}/pkgconfig")
  run("${PKG_CONFIG}" --modversion forebay)
  if(NOT RUN_OUTPUT STREQUAL "0.1.0\n")
    message(FATAL_ERROR "pkg-config knows version ${RUN_OUTPUT}")
  endif()
  file(MAKE_DIRECTORY "${WORK}/pc")
  run("${PKG_CONFIG}" --cflags --libs forebay)
  separate_arguments(shared UNIX_COMMAND "${RUN_OUTPUT}")
  run("${PKG_CONFIG}" --static --cflags --libs forebay)
  # -lforebay would take the shared library where both are there.
  string(REPLACE "-lforebay" "-l:libforebay.a" static "${RUN_OUTPUT}")
  separate_arguments(static UNIX_COMMAND "${static}")
  foreach(linkage IN ITEMS shared static)
    run("${CC}" -std=c11 "${SOURCE}/main.c" -o "${WORK}/pc/c_${linkage}" ${${linkage}})
    run_program("${WORK}/pc/c_${linkage}" "C")
    run("${CXX}" -std=c++17 "${SOURCE}/main.cpp" -o "${WORK}/pc/cpp_${linkage}" ${${linkage}})
    run_program("${WORK}/pc/cpp_${linkage}" "C++")
  endforeach()

else()
  message(FATAL_ERROR "unknown step: ${STEP}")
endif()
