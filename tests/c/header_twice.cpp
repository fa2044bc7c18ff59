// The C header twice in one file, in C++17: the linkage block closes.
#include <forebay.h>
#include <forebay.h>

namespace {
int overloaded(int value) { return value; }
int overloaded(long value) { return static_cast<int>(value); }
}  // namespace

int main() { return overloaded(0) + overloaded(0L) + forebay_free(nullptr); }
