# What linking with forebay::preload means, in a build tree and installed.
#
# The library must be the first among those that have CUDA's functions, and stay although the
# program names none of its own: so it comes with the options, which stand before all libraries.
function(forebay_preload_target location)
  set_target_properties(forebay::preload PROPERTIES
    IMPORTED_LOCATION "${location}"
    IMPORTED_SONAME libforebay_preload.so
    INTERFACE_LINK_OPTIONS "LINKER:--push-state,--no-as-needed,${location},--pop-state")
endfunction()
