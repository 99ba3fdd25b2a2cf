// One step of the engine: all tokens of a plan through all layers, by a team of threads.
#ifdef _OPENMP
#include <omp.h>
#endif

#include <numeric>

#include "layers.h"
#include "room.h"

namespace {

class Run {
 public:
  Run(const Model& model, const Step& step, Room& room) : model(model), step(step), room(room) {
    room.fit(model, step);
  }

  void thread(int rank) {
    Walk walk(room.loops);
    walk.share(int(room.tokens.size()), [&](int t) { embed(t); });
    for (int l = 0; l < model.num_layers; ++l) layer(walk, rank, l);
    auto logits = [&](int t) { return step.logits + long(t) * model.vocab; };
    const int outputs = step.num_outputs;
    walk.share(outputs, [&](int t) {
      normalise(model, model.norm, residual(room.output_rows[t]), result(t), &room.a[t * room.lda]);
    });
    auto keep = [&](int t, int c, const float* sums) {
      std::memcpy(logits(t) + c, sums, std::min(PANEL, model.vocab - c) * sizeof(float));
    };
    linear(walk, room.digits, room.a.data(), room.lda, outputs, model.head, keep);
    walk.share(outputs, [&](int t) { step.tokens[t] = likeliest(logits(t), model.vocab); });
    release_tiles();
  }

 private:
  const Model& model;
  const Step& step;
  Room& room;

  float* residual(long t) { return &room.x[t * model.hidden]; }
  float* result(long t) { return &room.result[t * room.ldr]; }

  // What to do with the panels of a product: they go to rows `ld` apart, past the caches where these
  // have no room for all of them beside what is being multiplied.
  static auto into(float* rows, long ld, int count) {
    const bool far = count * ld * long(sizeof(float)) >= 512 * 1024;
    return [=](int t, int c, const float* sums) {
      for (int i = 0; i < PANEL; i += LANES) {
        const vfloat x = load<vfloat>(sums + i);
        far ? stream(rows + t * ld + c + i, x) : store(rows + t * ld + c + i, x);
      }
    };
  }

  void embed(int t) {
    const Stored* from = model.embedding + long(step.token_ids[t]) * model.hidden;
    float* x = residual(t);
    for (int i = 0; i < model.hidden; ++i) x[i] = widen(from[i]);
    if (!model.positions) return;
    const float* place = model.positions + long(room.tokens[t].position) * model.hidden;
    for (int i = 0; i < model.hidden; ++i) x[i] += place[i];
  }

  void layer(Walk& walk, int rank, int l) {
    const Layer& layer = model.layers[l];
    Cache cache{step.k,         step.v, step.k_scales, step.v_scales, model.num_kv_heads,
                model.padded_dim, step.block_size};
    const long size = cache.at(step.num_blocks, 0), rows = cache.row(step.num_blocks, 0);
    cache.k += l * size, cache.v += l * size;
    if (cache.k_scales) cache.k_scales += l * rows, cache.v_scales += l * rows;
    const bool final = l == model.num_layers - 1;
    attention(walk, rank, layer, cache, final ? room.final_tiles : room.tiles);
    feed_forward(walk, layer, final);
  }

  // Leaves the heads' results in the room's `h`.
  void attention(Walk& walk, int rank, const Layer& layer, Cache& cache,
                 const std::vector<Tile>& tiles) {
    const int tokens = int(room.tokens.size()), heads = model.num_heads / model.num_kv_heads;
    const long lda = room.lda, width = room.width;
    const bool first = &layer == model.layers;
    walk.share(tokens, [&](int t) {
      normalise(model, layer.input, residual(t), first ? nullptr : result(t), &room.a[t * lda]);
    });
    linear(walk, room.digits, room.a.data(), lda, tokens, layer.qkv,
           into(room.qkv.data(), width, tokens));
    // Positions of one block share cache lines, so they are one thread's.
    walk.share(int(room.runs.size()) - 1, [&](int run) {
      for (int t = room.runs[run]; t < room.runs[run + 1]; ++t) {
        const Token& token = room.tokens[t];
        place(model, layer, cache, &room.qkv[t * width], t, tokens, token.position, token.slot,
              token.last, room.q.data(), [&](long row) {
                if (!cache.k_scales) return;
                const Operand* q = &room.q[row * cache.dim];
                room.queries.fill(row, q, cache.dim, DIGITS, largest(DIGITS), cache.dim);
              });
      }
    });
    const float scale = 1.0f / std::sqrt(float(model.head_dim));
    const Queries q{room.q.data(), room.queries};
    walk.share(int(tiles.size()), [&](int i) {
      auto one = cache.k_scales ? attend<true> : attend<false>;
      one(tiles[i], cache, q, tokens, heads, model.head_dim, scale, layer.window,
          room.threads[rank], room.h.data(), room.ldh);
    });
  }

  // Of the last layer, for the tokens only whose logits are wanted.
  void feed_forward(Walk& walk, const Layer& layer, bool final) {
    const int rows = final ? step.num_outputs : int(room.tokens.size());
    const long lda = room.lda, ldh = room.ldh;
    const auto into_result = into(result(0), room.ldr, rows);
    linear(walk, room.digits, room.h.data(), ldh, rows, layer.output, into_result);
    walk.share(rows, [&](int t) {
      float* x = residual(final ? room.output_rows[t] : t);
      normalise(model, layer.post_attention, x, result(t), &room.a[t * lda]);
    });
    if (layer.experts) return experts(walk, layer, rows);
    linear(walk, room.digits, room.a.data(), lda, rows, layer.up, [&](int t, int c, const float* sums) {
      activate(model, layer.down.inner, c, sums, &room.h[t * ldh]);
    });
    linear(walk, room.digits, room.h.data(), ldh, rows, layer.down, into_result);
  }

  // In place of the MLP: every token to its experts, and their results back, in the token's order.
  void experts(Walk& walk, const Layer& layer, int rows) {
    const long lda = room.lda, ldh = room.ldh, hidden = model.hidden;
    const int all = model.num_experts + model.shared, each = model.per_token + model.shared;
    Visits& to = room.visits;
    linear(walk, room.digits, room.a.data(), lda, rows, layer.router,
           into(to.logits.data(), padded(all), rows));
    walk.share(rows, [&](int t) { to.route(model, t); });
    walk.share(1, [&](int) { to.sort(rows, all, each); });
    walk.share(rows * each, [&](int v) {
      std::memcpy(&to.a[to.rows[v] * lda], &room.a[v / each * lda], hidden * sizeof(Operand));
    });
    linear_by_expert(walk, to.a.data(), lda, layer.experts, 2, all, to.starts.data(),
                     [&](int e, int row, int c, const float* sums) {
      activate(model, layer.experts[2 * e + 1].inner, c, sums, &room.h[row * ldh]);
    });
    const auto into_out = into(to.out.data(), room.ldr, rows * each);
    linear_by_expert(walk, room.h.data(), ldh, layer.experts + 1, 2, all, to.starts.data(),
                     [&](int, int row, int c, const float* sums) { into_out(row, c, sums); });
    walk.share(rows, [&](int t) {
      float* sum = result(t);
      std::fill_n(sum, hidden, 0.0f);
      for (int v = t * each; v < (t + 1) * each; ++v) {
        const float weight = to.weights[v], *from = &to.out[to.rows[v] * room.ldr];
        for (int i = 0; i < hidden; ++i) sum[i] += weight * from[i];
      }
    });
  }
};

}  // namespace

extern "C" {

int32_t nv_lanes() { return LANES; }
void* nv_open() { return new Room; }
void nv_close(void* room) { delete static_cast<Room*>(room); }

void nv_step(const Model* model, const Step* step, void* room) {
  Run run(*model, *step, *static_cast<Room*>(room));
#ifdef _OPENMP
#pragma omp parallel num_threads(step->num_threads)  // or fewer, if there are no more
  run.thread(omp_get_thread_num());
#else
  run.thread(0);
#endif
}

// A step of N sequences, each with a row of logits for its last token; then steps of one token, the
// likeliest one behind it, for those that want further ones. What is drawn goes to guesses [N,
// most], up to wanted[n] tokens of sequence n, or to the first -1. The blocks have room for all.
void nv_guess(const Model* model, const Step* given, void* room, const int32_t* wanted,
              int32_t most, int32_t* guesses) {
  Step step = *given;
  const int count = step.num_seqs;
  std::vector<int32_t> who(count), ids(count), starts(count + 1), ends(count), blocks(count);
  for (int n = 0; n < count; ++n) who[n] = n, ends[n] = step.context_lens[n];
  std::iota(starts.begin(), starts.end(), 0);
  for (int depth = 0; step.num_seqs; ++depth) {
    nv_step(model, &step, room);
    int left = 0;
    for (int i = 0; i < step.num_seqs; ++i) {
      const int n = who[i], token = step.tokens[i];
      guesses[n * most + depth] = token;
      if (token < 0 || depth + 1 >= wanted[n]) continue;
      who[left] = n, ids[left] = token, ends[left] = ends[i] + 1;
      blocks[left++] = given->block_starts[n];
    }
    step.num_seqs = step.num_outputs = left;
    step.token_ids = ids.data(), step.query_starts = starts.data();
    step.context_lens = ends.data(), step.block_starts = blocks.data();
  }
}

}
