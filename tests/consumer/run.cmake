# One step of the consumer test: `install` (then the prefix is moved: what is installed must
# not know where it was put), `find_package`, `pkg_config`, or `preload`: a CUDA program under the
# installed preload library, on the simulated CUDA libraries.
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

# Configures and builds this folder's project against the prefix, in a build folder of its own.
macro(build_project build)
  run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${build}" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
      "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}"
      -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF ${ARGN})
  run("${CMAKE_COMMAND}" --build "${build}")
endmacro()

# Runs the CUDA program; the pool has served all its calls. The first allocation starts the
# runtime, so it is served below it; the others before it.
macro(run_served name)
  run("${CMAKE_COMMAND}" -E env --unset=FOREBAY_BACKEND --unset=LD_PRELOAD FOREBAY_STATS=1
      FOREBAY_HEADROOM=0 FOREBAY_SIM_MEMORY=256MiB "LD_LIBRARY_PATH=${SIMULATED}" ${ARGN})
  set(_served "forebay: cuMemAlloc_v2: 1 served, 0 passed on\n")
  string(APPEND _served "forebay: cudaMalloc: 2 served, 0 passed on\n")
  string(APPEND _served "forebay: cudaFree: 3 served, 0 passed on\n")
  if(NOT RUN_OUTPUT STREQUAL "a CUDA program\n" OR NOT _error STREQUAL _served)
    message(FATAL_ERROR "${name} printed:\n${RUN_OUTPUT}${_error}not:\n${_served}")
  endif()
  message(STATUS "${name}: served")
endmacro()

if(STEP STREQUAL "install")
  file(REMOVE_RECURSE "${WORK}")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --config "${CONFIG}" --prefix "${WORK}/first")
  file(RENAME "${WORK}/first" "${PREFIX}")
  if(PRELOAD)
    list(APPEND more ${LIBDIR}/libforebay_preload.so ${LIBDIR}/pkgconfig/forebay-preload.pc)
  endif()
  if(COMMAND)
    list(APPEND more ${BINDIR}/forebay)
  endif()
  foreach(file IN ITEMS ${more}
          include/forebay.h include/forebay.hpp include/forebay_kv.hpp include/forebay_share.hpp
          ${LIBDIR}/libforebay.a ${LIBDIR}/libforebay.so ${LIBDIR}/libforebay.so.0
          ${LIBDIR}/libforebay.so.0.1.0 ${LIBDIR}/pkgconfig/forebay.pc
          ${LIBDIR}/cmake/forebay/forebayConfig.cmake
          ${LIBDIR}/cmake/forebay/forebayConfigVersion.cmake
          ${LIBDIR}/cmake/forebay/forebayPreload.cmake
          ${LIBDIR}/cmake/forebay/forebayTargets.cmake)
    if(NOT EXISTS "${PREFIX}/${file}")
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()

elseif(STEP STREQUAL "find_package")
  build_project("${WORK}/build")
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

elseif(STEP STREQUAL "preload")
  if(NOT SIMULATED OR NOT PRELOAD OR NOT COMMAND)
    message("SKIP consumer_preload: FOREBAY_SIMULATED names no folder, or a part is not built")
    return()
  endif()
  set(runtime "${SIMULATED}/libcudart.so.12")
  build_project("${WORK}/cuda" "-DRUNTIME=${runtime}")
  file(READ "${WORK}/cuda/preload.txt" preload)
  run_served("LD_PRELOAD" "LD_PRELOAD=${preload}" "${WORK}/cuda/cuda_plain")
  run_served("forebay::preload" "${WORK}/cuda/cuda_linked")
  run_served("forebay run" "${PREFIX}/${BINDIR}/forebay" run "${WORK}/cuda/cuda_plain")

  find_program(PKG_CONFIG NAMES pkg-config pkgconf)
  if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBDIR}/pkgconfig")
    run("${PKG_CONFIG}" --libs forebay-preload)
    separate_arguments(flags UNIX_COMMAND "${RUN_OUTPUT}")
    run("${PKG_CONFIG}" --variable=library forebay-preload)
    string(STRIP "${RUN_OUTPUT}" preload)
    run("${CC}" ${flags} "${SOURCE}/cuda.c" "${runtime}" -o "${WORK}/cuda/cuda_pc")
    run_served("pkg-config, linked" "LD_LIBRARY_PATH=${SIMULATED}:${PREFIX}/${LIBDIR}"
               "${WORK}/cuda/cuda_pc")
    run_served("pkg-config, LD_PRELOAD" "LD_PRELOAD=${preload}" "${WORK}/cuda/cuda_plain")
  endif()

else()
  message(FATAL_ERROR "unknown step: ${STEP}")
endif()
