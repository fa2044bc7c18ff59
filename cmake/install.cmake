# The install rules: libraries, the command, headers, forebay.pc and forebay-preload.pc, and the
# CMake package. Everything installed finds its neighbours by relative paths, so a moved prefix
# still works.
set(FOREBAY_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/forebay")

install(TARGETS forebay EXPORT forebayTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          COMPONENT runtime NAMELINK_COMPONENT development)
install(FILES "${FOREBAY_ARCHIVE}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/include/forebay.h"
              "${PROJECT_SOURCE_DIR}/bindings/cpp/forebay.hpp"
              "${PROJECT_SOURCE_DIR}/bindings/cpp/forebay_kv.hpp"
              "${PROJECT_SOURCE_DIR}/bindings/cpp/forebay_share.hpp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)

# ---- the Python package's own copies: files, since a wheel holds no links
install(PROGRAMS "$<TARGET_FILE:forebay>" DESTINATION forebay/lib RENAME libforebay.so.0
  COMPONENT python EXCLUDE_FROM_ALL)
install(PROGRAMS "$<TARGET_FILE:forebay_torch>" DESTINATION forebay/lib
  COMPONENT python EXCLUDE_FROM_ALL)

# ---- the preload library, beside libforebay.so.0, and the command, which looks for it in the
# lib folder of its own prefix
if(FOREBAY_BUILD_PRELOAD)
  install(PROGRAMS "${forebay_PRELOAD}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
  install(PROGRAMS "${forebay_PRELOAD}" DESTINATION forebay/lib
    COMPONENT python EXCLUDE_FROM_ALL)
endif()
if(FOREBAY_BUILD_COMMAND)
  install(PROGRAMS "${FOREBAY_COMMAND_FILE}" DESTINATION "${CMAKE_INSTALL_BINDIR}"
    COMPONENT runtime)
endif()

# ---- pkg-config
set(FOREBAY_PC_DIR "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
list(TRANSFORM FOREBAY_NATIVE_LIBS PREPEND "-l" OUTPUT_VARIABLE FOREBAY_PC_PRIVATE)
list(JOIN FOREBAY_PC_PRIVATE " " FOREBAY_PC_PRIVATE)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(FOREBAY_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  set(FOREBAY_PC_LIBDIR "${CMAKE_INSTALL_FULL_LIBDIR}")
  set(FOREBAY_PC_INCLUDEDIR "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
else()
  file(RELATIVE_PATH FOREBAY_PC_UP "/p/${FOREBAY_PC_DIR}" "/p")
  string(REGEX REPLACE "/$" "" FOREBAY_PC_UP "${FOREBAY_PC_UP}")
  set(FOREBAY_PC_PREFIX "\${pcfiledir}/${FOREBAY_PC_UP}")
  set(FOREBAY_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(FOREBAY_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
set(_pc forebay)
if(FOREBAY_BUILD_PRELOAD)
  list(APPEND _pc forebay-preload)
endif()
foreach(name IN LISTS _pc)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in"
                 "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc"
    DESTINATION "${FOREBAY_PC_DIR}" COMPONENT development)
endforeach()

# ---- find_package
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/forebayConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/forebayConfig.cmake"
  INSTALL_DESTINATION "${FOREBAY_CMAKE_DIR}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
# Until 1.0 a minor version may break, as the SONAME's number may.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/forebayConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/forebayConfig.cmake"
              "${PROJECT_BINARY_DIR}/forebayConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/forebayPreload.cmake"
  DESTINATION "${FOREBAY_CMAKE_DIR}" COMPONENT development)
install(EXPORT forebayTargets NAMESPACE forebay::
  DESTINATION "${FOREBAY_CMAKE_DIR}" COMPONENT development)
