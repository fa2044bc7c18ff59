// Serves a trace of requests by continuous batching over a paged KV cache, with a toy model on host
// memory: its attention reads keys and values through the block table alone, and every value that
// it reads is checked.
//
// usage: serve TRACE [--requests N] [--blocks N] [--batch N]
//
// TRACE: lines of time, prompt tokens, answer tokens under a header, as the Azure LLM inference
// traces have them. Times are passed over: all requests wait from the start, so the memory is full
// until the last ones. A prompt begins with one of eight system prompts.
#include <forebay_kv.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace {

constexpr std::uint32_t layers = 2;
constexpr std::uint32_t head_size = 2;  // of keys, and of values
constexpr std::uint32_t block_tokens = 16;
constexpr std::uint32_t system_prompts = 8;

using Clock = std::chrono::steady_clock;

struct Request {
  std::uint32_t id;
  std::uint32_t prompt;
  std::uint32_t answer;
  std::uint32_t known;  // tokens to compute before it is answered further: more once preempted
};

struct Arguments {
  std::string trace;
  std::size_t requests = SIZE_MAX;
  std::uint32_t blocks = 4096;
  std::size_t batch = 256;
};

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15U + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// The token at a place of a request: of its system prompt first, then its own.
std::int32_t token_of(const Request &request, std::uint32_t at) {
  const std::uint32_t which = request.id % system_prompts;
  const std::uint32_t common = std::min(request.prompt / 2, 100 + 50 * which);
  const std::uint64_t seed = at < common ? which : 1000 + std::uint64_t{request.id};
  return static_cast<std::int32_t>(mix(seed, at) & 0x7fffffff);
}

/// What the model computes for a token: it depends on all tokens before, as keys and values do.
float element(std::uint64_t history, std::uint32_t layer, std::uint32_t index) {
  return static_cast<float>(mix(history, layer * 16 + index) & 0xffff);
}

/// The device: memory of the pool, reached by block numbers only.
class Device {
 public:
  Device(const forebay_kv_layout &layout, const forebay::pool &pool)
      : layout_(layout), memory_(static_cast<std::size_t>(layout.total_bytes), {}, pool) {}

  void write(std::int32_t block, std::uint32_t place, std::uint64_t history) {
    for (std::uint32_t layer = 0; layer < layers; layer++) {
      float *const keys = at(block, layer, place, false);
      float *const values = at(block, layer, place, true);
      for (std::uint32_t i = 0; i < head_size; i++) {
        keys[i] = element(history, layer, i);
        values[i] = element(history, layer, head_size + i);
      }
    }
  }
  /// Whether a token's keys and values are what was computed for it.
  bool holds(std::int32_t block, std::uint32_t place, std::uint64_t history) const {
    bool same = true;
    for (std::uint32_t layer = 0; layer < layers; layer++) {
      const float *const keys = at(block, layer, place, false);
      const float *const values = at(block, layer, place, true);
      for (std::uint32_t i = 0; i < head_size; i++) {
        same &= keys[i] == element(history, layer, i);
        same &= values[i] == element(history, layer, head_size + i);
      }
    }
    return same;
  }
  void copy(const forebay_kv_copy &job) {
    for (std::uint32_t place = 0; place < job.tokens; place++) {
      for (std::uint32_t layer = 0; layer < layers; layer++) {
        for (const bool values : {false, true}) {
          std::memcpy(at(static_cast<std::int32_t>(job.to), layer, place, values),
                      at(static_cast<std::int32_t>(job.from), layer, place, values),
                      head_size * sizeof(float));
        }
      }
    }
  }

 private:
  float *at(std::int32_t block, std::uint32_t layer, std::uint32_t place, bool values) const {
    const std::uint64_t stride = values ? layout_.value_token_stride : layout_.key_token_stride;
    const std::uint64_t offset = static_cast<std::uint64_t>(block) * layout_.block_stride +
                                 layer * layout_.layer_stride + place * stride +
                                 (values ? layout_.value_offset : 0);
    return reinterpret_cast<float *>(static_cast<char *>(memory_.data()) + offset);
  }

  forebay_kv_layout layout_;
  forebay::buffer memory_;
};

/// A request that is being served. Its row of the block table is the `row`th.
struct Running {
  Request request;
  forebay::kv_sequence sequence;
  std::vector<std::uint64_t> history;  // of each token: what the model would have computed
  std::uint32_t tokens = 0;            // in the cache
  std::size_t row = 0;
};

struct Figures {
  std::uint64_t steps = 0, full_steps = 0, answered = 0, computed = 0, hit = 0, preempted = 0;
  std::uint64_t read = 0, wrong = 0, served = 0;
  double held = 0, cached = 0, running = 0;  // sums over the steps at full memory
  std::uint32_t peak_blocks = 0;
  Clock::duration bookkeeping{};
};

/// Runs a call and adds its time to the bookkeeping's.
template <class Call>
auto timed(Figures &figures, Call &&call) {
  const auto begin = Clock::now();
  auto result = call();
  figures.bookkeeping += Clock::now() - begin;
  return result;
}

class Server {
 public:
  Server(const Arguments &arguments, std::deque<Request> waiting, std::uint32_t longest)
      : arguments_(arguments),
        all_(waiting.size()),
        waiting_(std::move(waiting)),
        cache_(options(arguments)),
        device_(cache_.layout(), pool_),
        width_((longest + block_tokens) / block_tokens + 1),
        table_(arguments.batch * width_) {
    for (std::size_t row = arguments.batch; row > 0; row--) rows_.push_back(row - 1);
  }

  Figures serve() {
    auto shown = Clock::now();
    while (!waiting_.empty() || !running_.empty()) {
      figures_.steps++;
      // The device is one step behind: what was freed in the step before is now read by nobody.
      timed(figures_, [&] { return cache_.pass(figures_.steps - 1), 0; });
      admit();
      decode();
      account();
      if (Clock::now() - shown > std::chrono::milliseconds(400)) {
        shown = Clock::now();
        progress();
      }
    }
    progress();
    if (::isatty(2) != 0) std::fputc('\n', stderr);
    cache_.audit();
    return figures_;
  }

 private:
  static forebay_kv_options options(const Arguments &arguments) {
    static std::vector<forebay_kv_group> groups(1);
    forebay_kv_group &group = groups[0];
    group.layers = layers;
    group.heads = 1;
    group.key_size = group.value_size = head_size;
    group.block_tokens = block_tokens;
    group.element = FOREBAY_KV_F32;
    group.blocks = arguments.blocks;
    forebay_kv_options made = forebay::kv_cache::with(groups, forebay::kv_cache::defaults());
    made.max_sequences = static_cast<std::uint32_t>(arguments.batch);
    made.watermark = arguments.blocks / 100;
    return made;
  }

  std::int32_t *row(const Running &one) { return &table_[one.row * width_]; }

  /// Writes what the model computes for tokens that have blocks and are not there yet.
  void compute(Running &one, std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t at = from; at < to; at++) {
      device_.write(row(one)[at / block_tokens], at % block_tokens, one.history[at]);
    }
    figures_.computed += to - from;
  }

  /// Reads all tokens of a sequence through its row, as attention for its last one does.
  void attend(const Running &one) {
    for (std::uint32_t at = 0; at < one.tokens; at++) {
      const bool good =
          device_.holds(row(one)[at / block_tokens], at % block_tokens, one.history[at]);
      figures_.wrong += good ? 0U : 1U;
    }
    figures_.read += one.tokens;
  }

  void copies() {
    timed(figures_, [&] {
      return cache_.make_copies(0, [&](const forebay_kv_copy &job) { device_.copy(job); });
    });
  }

  void extend_history(Running &one, std::uint32_t to) {
    while (one.history.size() < to) {
      const auto at = static_cast<std::uint32_t>(one.history.size());
      const std::uint64_t before = at == 0 ? 0 : one.history.back();
      one.history.push_back(
          mix(before, static_cast<std::uint32_t>(token_of(one.request, at))));
    }
  }

  void admit() {
    while (!waiting_.empty() && !rows_.empty()) {
      Running one;
      one.request = waiting_.front();
      std::vector<std::int32_t> prompt(one.request.known);
      for (std::uint32_t at = 0; at < prompt.size(); at++) prompt[at] = token_of(one.request, at);
      const auto lacking = timed(figures_, [&] {
        one.sequence = forebay::kv_sequence(cache_);
        const forebay_kv_match found = one.sequence.find_prefix(prompt.data(), prompt.size() - 1);
        one.tokens = found.tokens;
        return one.sequence.append(prompt.data() + found.tokens,
                                   one.request.known - found.tokens);
      });
      if (lacking) {
        // What was hit may still be copied into: that is done before the sequence goes.
        copies();
        if (running_.empty() && lacking->quarantined == 0) {
          std::fprintf(stderr, "serve: a prompt of %u tokens needs more than %u blocks\n",
                       one.request.known, arguments_.blocks);
          std::exit(1);
        }
        return;
      }
      waiting_.pop_front();
      one.row = rows_.back();
      rows_.pop_back();
      copies();
      timed(figures_, [&] { return one.sequence.row(0, row(one), width_, true).to; });
      figures_.hit += one.tokens;
      extend_history(one, one.request.known);
      compute(one, one.tokens, one.request.known);
      one.tokens = one.request.known;
      attend(one);
      timed(figures_, [&] { return one.sequence.commit(one.tokens, figures_.steps), 0; });
      running_.push_back(std::move(one));
    }
  }

  /// Gives the newest request's blocks up; it waits again, to be computed anew.
  void preempt() {
    Running &last = running_.back();
    last.request.known = last.tokens;
    waiting_.push_front(last.request);
    finish(last);
    running_.pop_back();
    figures_.preempted++;
  }

  void finish(Running &one) {
    timed(figures_, [&] { return one.sequence.end(figures_.steps), 0; });
    rows_.push_back(one.row);
  }

  void decode() {
    std::vector<std::int32_t> tokens(running_.size());
    std::vector<forebay_kv_append_item> items;
    for (std::size_t i = 0; i < running_.size(); i++) {
      tokens[i] = token_of(running_[i].request, running_[i].tokens);
      items.push_back({running_[i].sequence.get(), &tokens[i], 1, 0});
    }
    // Those before the first that got no block go on; the others stand still in this step.
    std::size_t done = 0;
    const auto lacking = timed(figures_, [&] { return cache_.append(items, done); });
    copies();
    std::vector<forebay_kv_seq_tokens> committed;
    for (std::size_t i = 0; i < done; i++) {
      Running &one = running_[i];
      timed(figures_, [&] { return one.sequence.row(0, row(one), width_, false).to; });
      extend_history(one, one.tokens + 1);
      compute(one, one.tokens, one.tokens + 1);
      one.tokens++;
      attend(one);
      committed.push_back({one.sequence.get(), one.tokens, 0});
    }
    timed(figures_, [&] {
      forebay::check(forebay_kv_commit_all(cache_.get(), committed.data(), committed.size(),
                                           figures_.steps));
      return 0;
    });
    figures_.answered += done;
    if (lacking && lacking->quarantined == 0) {
      // Nothing comes back by itself: the newest makes room, which is there in the next step.
      if (running_.size() == 1) {
        std::fprintf(stderr, "serve: one sequence needs more than %u blocks\n", arguments_.blocks);
        std::exit(1);
      }
      preempt();
    }
    const auto is_done = [&](Running &one) {
      if (one.tokens < one.request.prompt + one.request.answer) return false;
      finish(one);
      figures_.served++;
      return true;
    };
    running_.erase(std::remove_if(running_.begin(), running_.end(), is_done), running_.end());
  }

  void account() {
    const forebay_kv_counts counts = cache_.counts();
    figures_.peak_blocks = std::max(figures_.peak_blocks, counts.used);
    if (waiting_.empty() || rows_.empty()) return;
    double empty = 0;
    for (const Running &one : running_) {
      empty += (block_tokens - one.tokens % block_tokens) % block_tokens;
    }
    const double all = double{block_tokens} * (counts.total - 1);
    figures_.full_steps++;
    figures_.held += (double{block_tokens} * counts.used - empty) / all;
    figures_.cached += double{block_tokens} * counts.cached / all;
    figures_.running += static_cast<double>(running_.size());
  }

  void progress() const {
    const bool terminal = ::isatty(2) != 0;
    std::fprintf(stderr,
                 "%s%" PRIu64 " of %zu requests, %" PRIu64 " tokens, %zu running, %zu waiting%s",
                 terminal ? "\r\033[K" : "  ", figures_.served, all_, figures_.answered,
                 running_.size(), waiting_.size(), terminal ? "" : "\n");
    std::fflush(stderr);
  }

  Arguments arguments_;
  std::size_t all_;
  std::deque<Request> waiting_;
  std::vector<Running> running_;
  std::vector<std::size_t> rows_;  // of the table, unused
  forebay::pool pool_;
  forebay::kv_cache cache_;
  Device device_;
  std::size_t width_;
  std::vector<std::int32_t> table_;
  Figures figures_;
};

/// The same trace where each sequence keeps memory for the longest one from its start.
struct Reserved {
  std::size_t fit = 0;
  double held = 0;
};

Reserved reserve_longest(const std::deque<Request> &requests, const Arguments &arguments,
                         std::uint32_t longest) {
  Reserved found;
  const double all = double{block_tokens} * (arguments.blocks - 1);
  found.fit = std::min<std::size_t>(arguments.batch, static_cast<std::size_t>(all / longest));
  std::deque<Request> waiting = requests;
  struct One {
    std::uint32_t tokens, end;
  };
  std::vector<One> running;
  std::uint64_t steps = 0;
  while (!waiting.empty()) {
    while (!waiting.empty() && running.size() < found.fit) {
      const Request &next = waiting.front();
      running.push_back({next.prompt, next.prompt + next.answer});
      waiting.pop_front();
    }
    if (running.empty()) break;
    double tokens = 0;
    for (One &one : running) tokens += ++one.tokens;
    found.held += tokens / all;
    steps++;
    const auto done = [](const One &one) { return one.tokens >= one.end; };
    running.erase(std::remove_if(running.begin(), running.end(), done), running.end());
  }
  if (steps > 0) found.held /= static_cast<double>(steps);
  return found;
}

std::deque<Request> read(const Arguments &arguments) {
  std::ifstream file(arguments.trace);
  if (!file) {
    std::fprintf(stderr, "serve: %s cannot be read\n", arguments.trace.c_str());
    std::exit(2);
  }
  std::deque<Request> requests;
  std::string line;
  std::getline(file, line);
  for (std::size_t number = 2; requests.size() < arguments.requests && std::getline(file, line);
       number++) {
    std::istringstream fields(line);
    std::string time;
    unsigned long prompt = 0, answer = 0;
    char comma = 0;
    std::getline(fields, time, ',');
    if (!(fields >> prompt >> comma >> answer) || comma != ',' || prompt + answer > 1U << 20) {
      std::fprintf(stderr, "serve: %s:%zu: expected time,prompt tokens,answer tokens\n",
                   arguments.trace.c_str(), number);
      std::exit(2);
    }
    if (prompt > 0 && answer > 0) {
      requests.push_back({static_cast<std::uint32_t>(requests.size()),
                          static_cast<std::uint32_t>(prompt), static_cast<std::uint32_t>(answer),
                          static_cast<std::uint32_t>(prompt)});
    }
  }
  return requests;
}

int usage() {
  std::fprintf(stderr, "usage: serve TRACE [--requests N] [--blocks N] [--batch N]\n");
  return 2;
}

void report(const Figures &figures, const Reserved &reserved, const Arguments &arguments) {
  const double seconds = std::chrono::duration<double>(figures.bookkeeping).count();
  const double steps = figures.full_steps == 0 ? 1 : static_cast<double>(figures.full_steps);
  const double held = 100 * figures.held / steps, cached = 100 * figures.cached / steps;
  const auto tokens = static_cast<double>(figures.computed + figures.hit);
  std::printf("%-44s %12" PRIu64 "\n", "requests served", figures.served);
  std::printf("%-44s %12" PRIu64 "\n", "tokens answered", figures.answered);
  std::printf("%-44s %12" PRIu64 "\n", "tokens computed", figures.computed);
  std::printf("%-44s %12" PRIu64 "\n", "tokens found in the cache (hits)", figures.hit);
  std::printf("%-44s %12" PRIu64 "\n", "preempted for want of blocks", figures.preempted);
  std::printf("%-44s %12" PRIu64 "\n", "tokens read by attention, each checked", figures.read);
  std::printf("%-44s %12" PRIu64 "\n", "of them wrong", figures.wrong);
  std::printf("%-44s %12.0f\n", "bookkeeping, tokens a second", tokens / seconds);
  std::printf("%-44s %12.2f\n", "bookkeeping, us a step",
              1e6 * seconds / static_cast<double>(figures.steps));
  std::printf("%-44s %7u of %u\n", "blocks in use at the peak", figures.peak_blocks,
              arguments.blocks - 1);
  std::printf("while requests wait, of all bytes mapped:\n");
  std::printf("  %-42s %12.2f %%\n", "hold token states of running requests", held);
  std::printf("  %-42s %12.2f %%\n", "hold prefixes kept for requests to come", cached);
  std::printf("  %-42s %12.2f %%\n", "wasted", 100 - held - cached);
  std::printf("  %-42s %12.1f\n", "requests running at a time", figures.running / steps);
  std::printf("the same with memory reserved for the longest request:\n");
  std::printf("  %-42s %12.2f %%\n", "hold token states", 100 * reserved.held);
  std::printf("  %-42s %12zu\n", "requests running at a time", reserved.fit);
}

int run(const Arguments &arguments) {
  const std::deque<Request> requests = read(arguments);
  std::uint32_t longest = 0;
  for (const Request &one : requests) longest = std::max(longest, one.prompt + one.answer);
  if (requests.empty()) {
    std::fprintf(stderr, "serve: %s holds no requests\n", arguments.trace.c_str());
    return 2;
  }
  const Figures figures = Server(arguments, requests, longest).serve();
  report(figures, reserve_longest(requests, arguments, longest), arguments);
  return figures.wrong == 0 && figures.served == requests.size() ? 0 : 1;
}

}  // namespace

int main(int count, char **words) {
  Arguments arguments;
  for (int at = 1; at < count; at++) {
    const std::string word = words[at];
    if (word.rfind("--", 0) != 0 && arguments.trace.empty()) {
      arguments.trace = word;
      continue;
    }
    const unsigned long value = at + 1 < count ? std::strtoul(words[++at], nullptr, 10) : 0;
    if (value == 0 || value > 1U << 30) return usage();
    if (word == "--requests") {
      arguments.requests = value;
    } else if (word == "--blocks") {
      arguments.blocks = static_cast<std::uint32_t>(value);
    } else if (word == "--batch") {
      arguments.batch = value;
    } else {
      return usage();
    }
  }
  if (arguments.trace.empty()) return usage();
  try {
    return run(arguments);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
