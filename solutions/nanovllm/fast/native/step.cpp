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
    walk.share(tokens, [&](int t) { embed(t); });
    for (int l = 0; l < model.num_layers; ++l) {
      const bool final = l == model.num_layers - 1;
      attention(walk, rank, l, final ? room.final_tiles : room.tiles);
      feed_forward(walk, model.layers[l], final);
    }
    auto logits = [&](int t) { return step.logits + long(t) * model.vocab; };
    const int outputs = step.num_outputs;
    walk.share(outputs, [&](int t) {
      normalise(model, model.norm, room.x[room.output_rows[t]], room.result[t], room.a[t]);
    });
    auto keep = [&](int t, int c, const float* sums) {
      std::memcpy(logits(t) + c, sums, std::min(PANEL, model.vocab - c) * sizeof(float));
    };
    linear(walk, room.digits, room.a, outputs, model.head, keep);
    walk.share(outputs, [&](int t) { step.tokens[t] = likeliest(logits(t), model.vocab); });
    release_tiles();
  }

 private:
  const Model& model;
  const Step& step;
  Room& room;
  const int tokens = step.query_starts[step.num_seqs];

  // What to do with the panels of a product: they go to `rows`, past the caches where these have no
  // room for all of them beside what is being multiplied.
  static auto into(Rows<float>& rows, int count) {
    const bool far = count * rows.ld * long(sizeof(float)) >= 512 * 1024;
    return [far, first = rows[0], ld = rows.ld](int t, int c, const float* sums) {
      for (int i = 0; i < PANEL; i += LANES) {
        float* to = first + t * ld + c + i;
        far ? stream(to, load<vfloat>(sums + i)) : store(to, load<vfloat>(sums + i));
      }
    };
  }

  void embed(int t) {
    const Stored* from = model.embedding + long(step.token_ids[t]) * model.hidden;
    float* x = room.x[t];
    for (int i = 0; i < model.hidden; ++i) x[i] = widen(from[i]);
    if (!model.positions) return;
    const float* place = model.positions + long(room.tokens[t].position) * model.hidden;
    for (int i = 0; i < model.hidden; ++i) x[i] += place[i];
  }

  // Leaves the heads' results in the room's `h`.
  void attention(Walk& walk, int rank, int l, const std::vector<Tile>& tiles) {
    const Layer& layer = model.layers[l];
    Cache cache{step.k, step.v, step.k_scales, step.v_scales, model.num_kv_heads, model.padded_dim,
                step.block_size, long(l) * step.num_blocks};
    walk.share(tokens, [&](int t) {
      normalise(model, layer.input, room.x[t], l ? room.result[t] : nullptr, room.a[t]);
    });
    linear(walk, room.digits, room.a, tokens, layer.qkv, into(room.qkv, tokens));
    // Positions of one block share cache lines, so they are one thread's.
    walk.share(int(room.runs.size()) - 1, [&](int run) {
      for (int t = room.runs[run]; t < room.runs[run + 1]; ++t)
        place(model, layer, cache, room.tokens[t], t, tokens, room.qkv[t], room.q, room.queries);
    });
    const float scale = 1.0f / std::sqrt(float(model.head_dim));
    const Heads heads{cache, room.q, room.queries, tokens, model.num_heads / model.num_kv_heads,
                      model.head_dim, scale, layer.window, room.h};
    // Some at a time, so that a thread knows what comes next.
    const int all = int(tiles.size()), each = std::clamp(all / (8 * step.num_threads), 1, 16);
    walk.share((all + each - 1) / each, [&](int item) {
      const Tile *tile = &tiles[item * each], *end = &tiles[0] + std::min((item + 1) * each, all);
      for (Lookahead ahead{heads, tile, end}; tile < end; ++tile) {
        if (cache.k_scales) Attention<true>{heads, *tile, ahead, room.threads[rank]}.attend();
        else Attention<false>{heads, *tile, ahead, room.threads[rank]}.attend();
      }
    });
  }

  // Of the last layer, for the tokens only whose logits are wanted.
  void feed_forward(Walk& walk, const Layer& layer, bool final) {
    const int rows = final ? step.num_outputs : tokens;
    linear(walk, room.digits, room.h, rows, layer.output, into(room.result, rows));
    walk.share(rows, [&](int t) {
      float* x = room.x[final ? room.output_rows[t] : t];
      normalise(model, layer.post_attention, x, room.result[t], room.a[t]);
    });
    if (layer.experts) return experts(walk, layer, rows);
    linear(walk, room.digits, room.a, rows, layer.up, [&](int t, int c, const float* sums) {
      activate(model, layer.down.inner, c, sums, room.h[t]);
    });
    linear(walk, room.digits, room.h, rows, layer.down, into(room.result, rows));
  }

  // In place of the MLP: every token to its experts, and their results back, in the token's order.
  void experts(Walk& walk, const Layer& layer, int rows) {
    const int all = model.num_experts + model.shared, each = model.per_token + model.shared;
    Visits& to = room.visits;
    linear(walk, room.digits, room.a, rows, layer.router, into(to.logits, rows));
    walk.share(rows, [&](int t) { to.route(model, t); });
    walk.share(1, [&](int) { to.sort(rows * each); });
    walk.share(rows * each, [&](int v) {
      std::memcpy(to.a[to.all[v].row], room.a[v / each], model.hidden * sizeof(Operand));
    });
    linear_by_expert(walk, to.a, layer.experts, all, to.starts.data(),
                     [&](int e, int row, int c, const float* sums) {
      activate(model, layer.experts[2 * e + 1].inner, c, sums, room.h[row]);
    });
    const auto into_out = into(to.out, rows * each);
    linear_by_expert(walk, room.h, layer.experts + 1, all, to.starts.data(),
                     [&](int, int row, int c, const float* sums) { into_out(row, c, sums); });
    walk.share(rows, [&](int t) {
      float* sum = room.result[t];
      std::fill_n(sum, model.hidden, 0.0f);
      for (int v = t * each; v < (t + 1) * each; ++v) {
        const float weight = to.all[v].weight, *from = to.out[to.all[v].row];
        for (int i = 0; i < model.hidden; ++i) sum[i] += weight * from[i];
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
