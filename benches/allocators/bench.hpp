// Loads, clock and device for the allocators that `cargo xtask bench peers` compares.
//
// Each program makes one allocator and hands it to `bench::run`, a template, so that all of them
// run in the same loops and none pays for an interface of ours. An allocator is a type with
// `void *take(std::size_t bytes)`, which answers null or throws where there is no memory, and
// `void give(void *block, std::size_t bytes)`. Must not: touch a block (its allocator may).
//
//   PROGRAM ALLOCATOR time WHAT   `ns LEAST MEDIAN`: thread CPU time an operation, once warm
//   PROGRAM ALLOCATOR use WHAT    `use PEAK_LIVE PEAK_TAKEN`, then the simulated driver's report
//   PROGRAM ALLOCATOR fits WHAT   `fits`, or `full` where there was no memory
//
// WHAT is `hot`, `mixed:LIVE`, or the file of a trace. An operation is one allocation or one free.
#ifndef FOREBAY_BENCH_ALLOCATORS_HPP
#define FOREBAY_BENCH_ALLOCATORS_HPP

#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

inline constexpr std::size_t kib = std::size_t{1} << 10;
inline constexpr std::size_t mib = std::size_t{1} << 20;
/// Sizes of the mixed loads, log-uniform between the two.
inline constexpr std::size_t bytes_min = 256;
inline constexpr std::size_t bytes_max = mib;
inline constexpr std::size_t hot_bytes = 4 * kib;
/// Blocks that stay live beside a hot pair, of the same size: one that every allocator has. Each
/// process has a few more, as its seed says: where a page of an allocator's lists is exactly full,
/// each pair may take and return one.
inline constexpr std::size_t hot_beside = 10'000;
inline constexpr std::size_t hot_more = 256;
/// Pairs of one timed pass, and passes at most.
inline constexpr std::size_t hot_pairs = std::size_t{1} << 16;
inline constexpr std::size_t mixed_pairs = std::size_t{1} << 12;
inline constexpr int passes_max = 24;
inline constexpr int passes_min = 3;
/// CPU time after which no further pass begins: some take tens of microseconds a pair.
inline constexpr double pass_budget_ns = 0.2e9;

/// What the program is asked for.
enum class mode { time, use, fits };

/// Ends the program with a sentence.
[[noreturn]] inline void die(const std::string &why) {
  std::fprintf(stderr, "bench: %s\n", why.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

inline double clock_ns(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) die("no clock");
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}
/// CPU time of this thread: other programs on the machine count less.
inline double cpu_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
/// Time that passes.
inline double wall_ns() { return clock_ns(CLOCK_MONOTONIC); }

/// SplitMix64: any seed will do.
class random {
 public:
  explicit random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t word = state_ += 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return word ^ word >> 31;
  }
  /// Log-uniform: each doubling is equally likely.
  std::size_t size() {
    const double unit = static_cast<double>(next() >> 11) * 0x1p-53;
    const double low = std::log(static_cast<double>(bytes_min));
    const double high = std::log(static_cast<double>(bytes_max));
    return static_cast<std::size_t>(std::exp(low + (high - low) * unit));
  }
  std::uint32_t below(std::size_t count) {
    return static_cast<std::uint32_t>((next() >> 32) * count >> 32);
  }

 private:
  std::uint64_t state_;
};

/// The number of the round this process belongs to: each draws loads of its own.
inline std::uint64_t seed() {
  const char *round = std::getenv("BENCH_ROUND");
  return 42 + (round != nullptr ? std::strtoull(round, nullptr, 10) << 32 : 0);
}

/// An allocation of `bytes` under `id`, or its free where `bytes` is 0.
struct event {
  std::uint32_t id;
  std::uint32_t unused;
  std::uint64_t bytes;
};
static_assert(sizeof(event) == 16, "the file's form");

/// A list of events, and how many blocks are live at most.
struct load {
  std::vector<event> events;
  std::size_t ids = 0;

  /// Reads a file that `flat_trace` wrote: the number of ids, then the events, little endian.
  static load of_file(const char *path) {
    std::FILE *file = std::fopen(path, "rb");
    if (file == nullptr) die(std::string("cannot read ") + path);
    load all;
    std::uint64_t ids = 0;
    if (std::fread(&ids, sizeof ids, 1, file) != 1) die(std::string("cut short: ") + path);
    all.ids = ids;
    event chunk[4096];
    for (std::size_t n = 0; (n = std::fread(chunk, sizeof *chunk, 4096, file)) > 0;)
      all.events.insert(all.events.end(), chunk, chunk + n);
    std::fclose(file);
    for (const event &e : all.events)
      if (e.id >= all.ids) die(std::string("an id that is none: ") + path);
    return all;
  }

  /// `live` blocks, then `pairs` times a random one freed and another size allocated.
  static load mixed(std::size_t live, std::size_t pairs) {
    random draw(seed());
    load all;
    all.ids = live;
    for (std::size_t i = 0; i < live; i++)
      all.events.push_back({static_cast<std::uint32_t>(i), 0, draw.size()});
    for (std::size_t i = 0; i < pairs; i++) {
      const std::uint32_t id = draw.below(live);
      all.events.push_back({id, 0, 0});
      all.events.push_back({id, 0, draw.size()});
    }
    return all;
  }
};

/// The simulated driver, asked by the side of the allocator: never while something is timed.
class device {
 public:
  /// Makes the first device's primary context current.
  device() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) die(dlerror());
    int ordinal = 0;
    void *context = nullptr;
    must("cuInit", find<int(unsigned)>("cuInit")(0));
    must("cuDeviceGet", find<int(int *, int)>("cuDeviceGet")(&ordinal, 0));
    auto *retain = find<int(void **, int)>("cuDevicePrimaryCtxRetain");
    must("cuDevicePrimaryCtxRetain", retain(&context, ordinal));
    must("cuCtxSetCurrent", find<int(void *)>("cuCtxSetCurrent")(context));
    info_ = find<int(std::size_t *, std::size_t *)>("cuMemGetInfo_v2");
    const std::size_t free_now = free();
    free_at_start_ = free_now;
  }
  /// Bytes of the whole device.
  std::size_t total() const { return total_; }
  /// Bytes taken from the device since this object was made.
  std::size_t taken() { return free_at_start_ - std::min(free_at_start_, free()); }
  /// All of the device's memory in one plain allocation; null where it is refused.
  void *allocate(std::size_t bytes) {
    std::uint64_t address = 0;
    const int code = find<int(std::uint64_t *, std::size_t)>("cuMemAlloc_v2")(&address, bytes);
    return code == 0 ? reinterpret_cast<void *>(address) : nullptr;
  }
  /// Gives such an allocation back.
  void deallocate(void *block) {
    auto *give = find<int(std::uint64_t)>("cuMemFree_v2");
    must("cuMemFree", give(reinterpret_cast<std::uint64_t>(block)));
  }
  /// The simulation's own report, JSON on one line.
  std::string report() {
    auto *write = find<std::size_t(char *, std::size_t)>("forebay_sim_report");
    std::string text(write(nullptr, 0), '\0');
    text.resize(std::min(text.size(), write(text.data(), text.size())));
    text.resize(std::strlen(text.c_str()));
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

 private:
  template <class F>
  F *find(const char *name) {
    void *found = dlsym(library_, name);
    if (found == nullptr) die(dlerror());
    return reinterpret_cast<F *>(found);
  }
  static void must(const char *call, int code) {
    if (code != 0) die(std::string(call) + " answered " + std::to_string(code));
  }
  std::size_t free() {
    std::size_t free_bytes = 0;
    must("cuMemGetInfo", info_(&free_bytes, &total_));
    return free_bytes;
  }

  void *library_ = nullptr;
  int (*info_)(std::size_t *, std::size_t *) = nullptr;
  std::size_t free_at_start_ = 0;
  std::size_t total_ = 0;
};

/// A live block.
struct block {
  void *address = nullptr;
  std::size_t bytes = 0;
};

/// Allocates; false where the allocator has no memory, however it says so.
template <class A>
bool take(A &allocator, block &into, std::size_t bytes) {
  try {
    into.address = allocator.take(bytes);
  } catch (...) {
    into.address = nullptr;
  }
  into.bytes = into.address == nullptr ? 0 : bytes;
  return into.address != nullptr;
}

/// Frees whatever is live, in the order of the ids.
template <class A>
void drop(A &allocator, std::vector<block> &blocks) {
  for (block &held : blocks)
    if (held.address != nullptr) allocator.give(held.address, held.bytes);
  blocks.assign(blocks.size(), block{});
}

/// Plays a load and shows each allocation's live bytes to `look`; false where memory ran out.
template <class A, class Look>
bool play(A &allocator, const load &what, Look &&look) {
  std::vector<block> blocks(what.ids);
  std::size_t live = 0;
  bool well = true;
  for (const event &e : what.events) {
    block &at = blocks[e.id];
    if (e.bytes == 0) {
      live -= at.bytes;
      allocator.give(at.address, at.bytes);
      at = block{};
      continue;
    }
    well = take(allocator, at, e.bytes);
    if (!well) break;
    live += e.bytes;
    look(live);
  }
  drop(allocator, blocks);
  return well;
}

/// Repeats a pass and prints its least and its median, in nanoseconds an operation.
template <class Pass>
void repeat(std::size_t operations, Pass &&pass) {
  double began = cpu_ns();
  for (int warm = 0; warm < passes_max / 2 && (warm < 1 || cpu_ns() - began < pass_budget_ns);)
    pass(), warm++;
  std::vector<double> samples;
  began = cpu_ns();
  for (int done = 0; done < passes_max; done++) {
    if (done >= passes_min && cpu_ns() - began > pass_budget_ns) break;
    const double from = cpu_ns();
    pass();
    samples.push_back((cpu_ns() - from) / static_cast<double>(operations));
  }
  std::sort(samples.begin(), samples.end());
  std::printf("ns %.3f %.3f\n", samples.front(), samples[samples.size() / 2]);
}

// Opaque to the optimiser, as a size is that a program computes at run time.
inline volatile std::size_t opaque_bytes = hot_bytes;

/// A pair of one size again and again, beside live blocks of that size.
template <class A>
void time_hot(A &allocator) {
  std::vector<block> beside(hot_beside + random(seed()).below(hot_more));
  for (block &held : beside)
    if (!take(allocator, held, hot_bytes)) die("no memory for the blocks beside");
  repeat(2 * hot_pairs, [&] {
    for (std::size_t i = 0; i < hot_pairs; i++) {
      const std::size_t bytes = opaque_bytes;
      allocator.give(allocator.take(bytes), bytes);
    }
  });
}

/// A random one of `live` blocks is freed, another size allocated. Each pass draws its own.
template <class A>
void time_mixed(A &allocator, std::size_t live) {
  struct replacement {
    std::uint32_t slot;
    std::uint32_t bytes;
  };
  random draw(seed());
  std::vector<block> table(live);
  for (block &held : table)
    if (!take(allocator, held, draw.size())) die("no memory for the table");
  std::vector<replacement> list(mixed_pairs * passes_max / 4);
  for (replacement &next : list)
    next = {draw.below(live), static_cast<std::uint32_t>(draw.size())};
  std::size_t at = 0;
  repeat(2 * mixed_pairs, [&] {
    for (std::size_t i = 0; i < mixed_pairs; i++) {
      const replacement next = list[at + i];
      block &held = table[next.slot];
      allocator.give(held.address, held.bytes);
      held = {allocator.take(next.bytes), next.bytes};
    }
    at = (at + mixed_pairs) % list.size();
  });
  // The process ends now: to free them one by one takes some allocators seconds.
}

/// The number after `mixed:`, or 0.
inline std::size_t mixed_live(const char *what) {
  const bool mixed = std::strncmp(what, "mixed:", 6) == 0;
  return mixed ? std::strtoull(what + 6, nullptr, 10) : 0;
}

/// The load that `what` names, for `use` and `fits`.
inline load load_of(const char *what) {
  const std::size_t live = mixed_live(what);
  if (live > 0) return load::mixed(live, live);
  return load::of_file(what);
}

template <class A>
void time_of(A &allocator, const char *what) {
  const std::size_t live = mixed_live(what);
  if (std::strcmp(what, "hot") == 0) return time_hot(allocator);
  if (live > 0) return time_mixed(allocator, live);
  die(std::string("no load is called ") + what);
}

/// Peak live bytes, peak bytes taken from the device, and what the driver was asked for.
template <class A>
void use_of(A &allocator, const char *what, device &from) {
  std::size_t peak_live = 0;
  std::size_t peak_taken = 0;
  const bool well = play(allocator, load_of(what), [&](std::size_t live) {
    peak_live = std::max(peak_live, live);
    peak_taken = std::max(peak_taken, from.taken());
  });
  if (!well) die(std::string("no memory for ") + what);
  std::printf("use %zu %zu\n%s\n", peak_live, peak_taken, from.report().c_str());
}

/// Does what the command line asks of an allocator. `from` is null for one of host memory.
template <class A>
int run(A &allocator, mode asked, const char *what, device *from) {
  if (asked == mode::time) {
    time_of(allocator, what);
  } else if (from == nullptr) {
    die("this allocator takes no memory from the device");
  } else if (asked == mode::use) {
    use_of(allocator, what, *from);
  } else {
    const bool well = play(allocator, load_of(what), [](std::size_t) {});
    std::puts(well ? "fits" : "full");
  }
  // Not exit(): what is measured is not how a library is taken down.
  std::fflush(nullptr);
  std::_Exit(0);
}

/// The command line: ALLOCATOR, the mode, WHAT.
struct request {
  std::string allocator;
  mode asked;
  const char *what;

  request(int count, char **words) {
    if (count != 4) die("usage: PROGRAM ALLOCATOR time|use|fits hot|mixed:LIVE|FILE");
    allocator = words[1];
    const std::string name = words[2];
    asked = name == "time" ? mode::time : name == "use" ? mode::use : mode::fits;
    if (asked == mode::fits && name != "fits") die("no mode is called " + name);
    what = words[3];
  }
};

}  // namespace bench
#endif
