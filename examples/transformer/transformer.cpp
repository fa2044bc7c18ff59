// A small transformer block on the host backend: 1,000 steps with every intermediate from the
// pool, then 1,000 by a plan of one recorded step. The results are equal to the last bit, and no
// allocation of a planned step reaches the pool.
//
// Attention of four heads over a sequence, then a feed-forward layer, both with a residual and a
// normalisation. Sizes are small: what is shown is where buffers come from, not arithmetic. The
// arithmetic is the CPU's, so the memory must be too: FOREBAY_BACKEND=host.
#include <forebay_plan.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int sequence = 12;
constexpr int width = 32;
constexpr int heads = 4;
constexpr int head = width / heads;
constexpr int hidden = 4 * width;
constexpr int steps = 1000;

/// Where a step's buffers come from and go to.
struct source {
  virtual ~source() = default;
  virtual float *take(int floats) = 0;
  virtual void give(float *buffer) = 0;
};

struct from_pool final : source {
  explicit from_pool(const forebay::pool &of) : pool(of) {}
  float *take(int floats) override {
    return static_cast<float *>(pool.allocate(sizeof(float) * static_cast<std::size_t>(floats)));
  }
  void give(float *buffer) override { pool.deallocate(buffer); }
  const forebay::pool &pool;
};

struct from_step final : source {
  explicit from_step(const forebay::PlannedStep &of) : step(of) {}
  float *take(int floats) override {
    return static_cast<float *>(step.allocate(sizeof(float) * static_cast<std::size_t>(floats)));
  }
  void give(float *buffer) override { step.deallocate(buffer); }
  const forebay::PlannedStep &step;
};

/// A matrix out of a source.
struct matrix {
  matrix(source &of, int rows_, int columns_)
      : from(of), rows(rows_), columns(columns_), at(of.take(rows_ * columns_)) {}
  matrix(const matrix &) = delete;
  matrix &operator=(const matrix &) = delete;
  ~matrix() { from.give(at); }
  float &operator()(int row, int column) { return at[row * columns + column]; }
  float operator()(int row, int column) const { return at[row * columns + column]; }
  source &from;
  int rows;
  int columns;
  float *at;
};

/// Weights live for ever: the program's own memory.
struct weights {
  weights(int rows, int columns_, int seed) : columns(columns_) {
    for (int i = 0; i < rows * columns; ++i) {
      all.push_back(0.1F * std::sin(static_cast<float>(i * 7 + seed)));
    }
  }
  float operator()(int row, int column) const {
    return all[static_cast<std::size_t>(row * columns + column)];
  }
  int columns;
  std::vector<float> all;
};

void multiply(matrix &to, const matrix &a, const weights &b) {
  for (int i = 0; i < to.rows; ++i) {
    for (int j = 0; j < to.columns; ++j) {
      float sum = 0;
      for (int k = 0; k < a.columns; ++k) sum += a(i, k) * b(k, j);
      to(i, j) = sum;
    }
  }
}

void normalise(matrix &to, const matrix &from) {
  for (int i = 0; i < from.rows; ++i) {
    float mean = 0;
    float spread = 1e-5F;
    for (int j = 0; j < from.columns; ++j) mean += from(i, j) / static_cast<float>(from.columns);
    for (int j = 0; j < from.columns; ++j) {
      const float off = from(i, j) - mean;
      spread += off * off / static_cast<float>(from.columns);
    }
    for (int j = 0; j < from.columns; ++j) to(i, j) = (from(i, j) - mean) / std::sqrt(spread);
  }
}

/// One head's part of the attention, written to its columns of `to`.
void attend(matrix &to, const matrix &q, const matrix &k, const matrix &v, int first) {
  matrix scores(to.from, sequence, sequence);
  for (int i = 0; i < sequence; ++i) {
    float sum = 0;
    for (int j = 0; j < sequence; ++j) {
      float dot = 0;
      for (int c = first; c < first + head; ++c) dot += q(i, c) * k(j, c);
      // Causal: later places are not seen.
      scores(i, j) = j <= i ? std::exp(dot / std::sqrt(static_cast<float>(head))) : 0;
      sum += scores(i, j);
    }
    for (int c = first; c < first + head; ++c) {
      float mixed = 0;
      for (int j = 0; j <= i; ++j) mixed += scores(i, j) / sum * v(j, c);
      to(i, c) = mixed;
    }
  }
}

struct block {
  weights query{width, width, 1}, key{width, width, 2}, value{width, width, 3};
  weights out{width, width, 4}, up{width, hidden, 5}, down{hidden, width, 6};
};

void attention(source &from, const block &w, std::vector<float> &state) {
  matrix input(from, sequence, width);
  for (std::size_t i = 0; i < state.size(); ++i) input.at[i] = state[i];
  matrix normal(from, sequence, width);
  normalise(normal, input);
  matrix mixed(from, sequence, width);
  {
    matrix q(from, sequence, width), k(from, sequence, width), v(from, sequence, width);
    multiply(q, normal, w.query);
    multiply(k, normal, w.key);
    multiply(v, normal, w.value);
    for (int h = 0; h < heads; ++h) attend(mixed, q, k, v, h * head);
  }
  matrix projected(from, sequence, width);
  multiply(projected, mixed, w.out);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = input.at[i] + projected.at[i];
}

void feed_forward(source &from, const block &w, std::vector<float> &state) {
  matrix input(from, sequence, width);
  for (std::size_t i = 0; i < state.size(); ++i) input.at[i] = state[i];
  matrix normal(from, sequence, width);
  normalise(normal, input);
  matrix wide(from, sequence, hidden);
  multiply(wide, normal, w.up);
  matrix active(from, sequence, hidden);
  for (int i = 0; i < sequence * hidden; ++i) active.at[i] = std::tanh(wide.at[i]);
  matrix narrow(from, sequence, width);
  multiply(narrow, active, w.down);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = input.at[i] + 0.5F * narrow.at[i];
}

void step(source &from, const block &w, std::vector<float> &state) {
  attention(from, w, state);
  feed_forward(from, w, state);
  // So that a thousand steps stay within floats.
  for (float &x : state) x = std::tanh(x);
}

std::vector<float> beginning() {
  std::vector<float> state;
  for (int i = 0; i < sequence * width; ++i) state.push_back(std::cos(static_cast<float>(i)));
  return state;
}

int run() {
  const forebay::pool pool{forebay::pool_options()};
  const block w;
  from_pool ours(pool);

  std::vector<float> by_pool = beginning();
  for (int i = 0; i < steps; ++i) step(ours, w, by_pool);

  const forebay::recording recorded(pool);
  std::vector<float> once = beginning();
  step(ours, w, once);
  recorded.end();
  const forebay::plan plan(recorded);
  const forebay::binding bound(plan, pool);

  std::vector<float> by_plan = beginning();
  const std::uint64_t allocated = pool.stats().allocs;
  for (int i = 0; i < steps; ++i) {
    forebay::PlannedStep planned(bound, recorded.streams());
    from_step by(planned);
    step(by, w, by_plan);
    planned.end();
  }
  const bool untouched = pool.stats().allocs == allocated;

  const forebay_plan_info info = plan.info();
  const forebay_binding_stats stats = bound.stats();
  std::printf("%llu buffers a step in %llu bytes (no plan takes less than %llu)\n",
              static_cast<unsigned long long>(info.buffers),
              static_cast<unsigned long long>(info.height),
              static_cast<unsigned long long>(info.bound));
  std::printf("%d steps: %llu allocations by plan, %llu by the pool\n", steps,
              static_cast<unsigned long long>(stats.served),
              static_cast<unsigned long long>(stats.fallbacks));
  const bool equal = by_pool == by_plan;
  const bool moved = by_pool != beginning();
  std::printf("results %s\n", equal && moved ? "equal" : "DIFFER");
  const bool all = stats.served == info.buffers * steps && stats.fallbacks == 0;
  return equal && moved && all && untouched ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception &wrong) {
    std::fprintf(stderr, "%s\n", wrong.what());
    return 1;
  }
}
