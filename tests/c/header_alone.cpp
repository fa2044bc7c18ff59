// The C header as the first and only include, in C++17.
#include <forebay.h>

int main() {
  forebay_stats stats{};
  stats.struct_size = sizeof stats;
  const forebay_status status = forebay_free(nullptr);
  return status == FOREBAY_OK ? 0 : 1;
}
