# Registers the consumer tests: install once, then build against the prefix in both ways.
set(_consumer_dir "${PROJECT_BINARY_DIR}/consumer")
foreach(step IN ITEMS install find_package pkg_config preload)
  add_test(NAME consumer_${step} COMMAND "${CMAKE_COMMAND}"
    "-DSTEP=${step}" "-DSOURCE=${PROJECT_SOURCE_DIR}/tests/consumer"
    "-DBUILD=${PROJECT_BINARY_DIR}" "-DWORK=${_consumer_dir}" "-DCONFIG=$<CONFIG>"
    "-DGENERATOR=${CMAKE_GENERATOR}" "-DMAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}"
    "-DCC=${CMAKE_C_COMPILER}" "-DCXX=${CMAKE_CXX_COMPILER}"
    "-DLIBDIR=${CMAKE_INSTALL_LIBDIR}" "-DBINDIR=${CMAKE_INSTALL_BINDIR}"
    "-DSIMULATED=${FOREBAY_SIMULATED}" "-DPRELOAD=${FOREBAY_BUILD_PRELOAD}"
    "-DCOMMAND=${FOREBAY_BUILD_COMMAND}"
    -P "${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake")
  set_tests_properties(consumer_${step} PROPERTIES
    ENVIRONMENT "FOREBAY_BACKEND=host" SKIP_REGULAR_EXPRESSION "SKIP " TIMEOUT 300)
endforeach()
set_tests_properties(consumer_install PROPERTIES FIXTURES_SETUP consumer_prefix)
set_tests_properties(consumer_find_package consumer_pkg_config consumer_preload PROPERTIES
  FIXTURES_REQUIRED consumer_prefix)
